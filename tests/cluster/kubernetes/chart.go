// SPDX-License-Identifier: Apache-2.0

// chart renders a Helm chart as `helm template` does, as far as Capstan's chart
// needs it, with the engine and the functions that Helm is made of: text/template
// and sprig.
//
//	chart CHART RELEASE NAMESPACE < VALUES
//
// VALUES is a JSON object that is merged into the chart's values.yaml. The
// manifests go to standard output, notes as comments behind them.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type object = map[string]interface{}

// files is .Files of a template.
type files string

func (chart files) Get(name string) string {
	text, _ := os.ReadFile(filepath.Join(string(chart), name)) // Helm: ""
	return string(text)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func load(path string) object {
	var whole object
	text, err := os.ReadFile(path)
	check(err)
	check(yaml.Unmarshal(text, &whole))
	return whole
}

// merge puts what OVER has into VALUES; objects are merged, others replaced, and
// null removes a key.
func merge(values, over object) {
	for key, value := range over {
		below, ok := values[key].(object)
		if more, both := value.(object); ok && both {
			merge(below, more)
		} else if value == nil {
			delete(values, key)
		} else {
			values[key] = value
		}
	}
}

func toYaml(value interface{}) (string, error) {
	text, err := yaml.Marshal(value)
	return strings.TrimSuffix(string(text), "\n"), err
}

func main() {
	if len(os.Args) != 4 {
		check(fmt.Errorf("chart CHART RELEASE NAMESPACE < VALUES"))
	}
	folder, release, namespace := os.Args[1], os.Args[2], os.Args[3]
	meta, values, over := load(filepath.Join(folder, "Chart.yaml")),
		load(filepath.Join(folder, "values.yaml")), object{}
	check(json.NewDecoder(os.Stdin).Decode(&over))
	merge(values, over)

	all := template.New("").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["toYaml"] = toYaml
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	all.Funcs(functions)
	names, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		check(err)
		_, err = all.New(name).Parse(string(text))
		check(err)
	}
	data := object{
		"Values": values,
		"Files":  files(folder),
		"Chart": object{"Name": meta["name"], "Version": meta["version"],
			"AppVersion": meta["appVersion"]},
		"Release": object{"Name": release, "Namespace": namespace,
			"Service": "Helm", "Revision": 1, "IsInstall": true},
	}
	for _, name := range names {
		var out bytes.Buffer
		if strings.HasPrefix(filepath.Base(name), "_") {
			continue
		}
		check(all.ExecuteTemplate(&out, name, data))
		text := out.String()
		if strings.HasSuffix(name, ".txt") {
			text = "# " + strings.ReplaceAll(text, "\n", "\n# ")
		}
		fmt.Printf("---\n%s\n", text)
	}
}
