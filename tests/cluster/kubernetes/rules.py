# SPDX-License-Identifier: Apache-2.0
"""Rules that the manifests of deploy/kubernetes follow, and mutations that break
each of them.

The schemas say which fields the files may have, of what type, and which they
need; they are written after the published ones, and know only the fields that
these files use:
https://kubernetes.io/docs/reference/kubernetes-api/ (core/v1, batch/v1, policy/v1)
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
https://www.kubeflow.org/docs/components/trainer/ (trainer.kubeflow.org/v1alpha1)
https://github.com/kubeflow/training-operator (kubeflow.org/v1, v1.8)
The rules are about several fields: names that have to exist, ports and selectors
that have to meet, and what Capstan itself needs.
"""
import copy
import json
import os
import re

import jsonschema

import manifests
import pods as controllers

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
DNS_LABEL = f"^{LABEL}$"                      # RFC 1123
SERVICE_NAME = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"  # RFC 1035
SUBDOMAIN = rf"^{LABEL}(\.{LABEL})*$"
QUALIFIED = (rf"^({LABEL}(\.{LABEL})*/)?"
             r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
PORT_NAME = r"^(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
PERMANENT = [1, 2]          # exit codes that a retry does not mend
GRACE, STOP = 30, 5         # timeouts.grace and timeouts.stop
LONGEST_DELAY = 600         # seconds that the Job controller waits before a retry

string = {"type": "string", "minLength": 1}
boolean = {"type": "boolean"}
natural = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
positive = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
port_number = {"type": "integer", "minimum": 1, "maximum": 65535}


def matching(pattern, longest=253):
    return {"type": "string", "pattern": pattern, "maxLength": longest}


def one_of(*values):
    return {"enum": list(values)}


def list_of(items, least=1):
    return {"type": "array", "items": items, "minItems": least}


def record(required="", **fields):
    """An object of FIELDS; a name in REQUIRED (words) has to be there."""
    return {"type": "object", "additionalProperties": False,
            "required": required.split(), "properties": fields}


def names_to(value, key=QUALIFIED):
    return {"type": "object", "additionalProperties": False,
            "patternProperties": {key: value}}


labels = names_to(matching(LABEL_VALUE, 63))
annotations = names_to({"type": "string"})
name = matching(DNS_LABEL, 63)


def metadata(required="name", pattern=DNS_LABEL):
    return record(required, name=matching(pattern, 63), labels=labels,
                  annotations=annotations)


quantities = names_to({"anyOf": [matching(QUANTITY), positive]})
resources = record(requests=quantities, limits=quantities)
selector = record(
    matchLabels=labels,
    matchExpressions=list_of(record(
        "key operator values", key=matching(QUALIFIED), operator=one_of("In"),
        values=list_of(matching(LABEL_VALUE, 63)))))
probe = record(
    "httpGet", periodSeconds=positive, timeoutSeconds=positive,
    failureThreshold=positive,
    httpGet=record("path port", path=matching("^/"),
                   port={"anyOf": [matching(PORT_NAME), port_number]}))
container = record(
    "name image", name=name, image=matching(r"^[a-z0-9][a-z0-9./_-]*(:[\w.-]+|@sha256:[0-9a-f]{64})$"),
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    command=list_of(string), args=list_of(string), resources=resources,
    envFrom=list_of(record("configMapRef",
                           configMapRef=record("name", name=name))),
    env=list_of(record(
        "name", name=matching(r"^[A-Za-z_][A-Za-z0-9_]*$"),
        value={"type": "string"}, valueFrom=record("fieldRef", fieldRef=record(
            "fieldPath", fieldPath=matching(
                r"^metadata\.(name|namespace|(labels|annotations)\['.+'\])$"))))),
    ports=list_of(record("containerPort", name=matching(PORT_NAME, 15),
                         containerPort=port_number)),
    startupProbe=probe, livenessProbe=probe, readinessProbe=probe,
    securityContext=record(
        allowPrivilegeEscalation=boolean, readOnlyRootFilesystem=boolean,
        capabilities=record(drop=list_of(string))),
    volumeMounts=list_of(record("name mountPath", name=name, readOnly=boolean,
                                mountPath=matching("^/[^:]+$"))))
volume = {"oneOf": [
    record("name configMap", name=name,
           configMap=record("name", name=matching(SUBDOMAIN))),
    record("name secret", name=name, secret=record(
        "secretName defaultMode", secretName=matching(SUBDOMAIN),
        defaultMode=one_of(0o440))),
    record("name persistentVolumeClaim", name=name, persistentVolumeClaim=record(
        "claimName", claimName=matching(SUBDOMAIN), readOnly=boolean)),
    record("name emptyDir", name=name, emptyDir=record(
        medium=one_of("Memory"), sizeLimit=matching(QUANTITY)))]}
pod_spec = record(
    "containers", subdomain=name, terminationGracePeriodSeconds=natural,
    restartPolicy=one_of("Never", "OnFailure", "Always"),
    automountServiceAccountToken=boolean, enableServiceLinks=boolean,
    imagePullSecrets=list_of(record("name", name=matching(SUBDOMAIN))),
    affinity={"type": "object"}, priorityClassName=matching(SUBDOMAIN),
    runtimeClassName=matching(SUBDOMAIN), serviceAccountName=matching(SUBDOMAIN),
    nodeSelector=labels, tolerations=list_of(record(
        key=matching(QUALIFIED), operator=one_of("Exists", "Equal"),
        value={"type": "string"}, effect=string)),
    securityContext=record(
        runAsNonRoot=boolean, runAsUser=natural, runAsGroup=natural,
        fsGroup=natural, seccompProfile=record(
            "type", type=one_of("RuntimeDefault", "Unconfined"))),
    containers=list_of(container), volumes=list_of(volume))
pod_template = record("spec", metadata=metadata(""), spec=pod_spec)
job_spec = record(
    "template", completionMode=one_of("Indexed", "NonIndexed"),
    completions=positive, parallelism=positive, backoffLimit=natural,
    backoffLimitPerIndex=natural, maxFailedIndexes=natural,
    ttlSecondsAfterFinished=natural,
    podFailurePolicy=record("rules", rules=list_of({"oneOf": [
        record("action onExitCodes",
               action=one_of("FailJob", "Ignore", "Count", "FailIndex"),
               onExitCodes=record(
                   "operator values", containerName=name,
                   operator=one_of("In", "NotIn"), values=list_of(natural))),
        record("action onPodConditions",
               action=one_of("FailJob", "Ignore", "Count", "FailIndex"),
               onPodConditions=list_of(record(
                   "type status", type=string,
                   status=one_of("True", "False", "Unknown"))))]})),
    template=pod_template)
jobset_spec = record(
    "replicatedJobs",
    network=record(enableDNSHostnames=boolean, publishNotReadyAddresses=boolean,
                   subdomain=matching(SERVICE_NAME, 63)),
    successPolicy=record("operator", operator=one_of("All", "Any"),
                         targetReplicatedJobs=list_of(string)),
    failurePolicy=record(
        maxRestarts=natural,
        restartStrategy=one_of("Recreate", "BlockingRecreate"),
        rules=list_of(record(
            "name action", name=matching(
                r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", 128),
            action=one_of("FailJobSet", "RestartJobSet",
                          "RestartJobSetAndIgnoreMaxRestarts"),
            onJobFailureReasons=list_of(one_of(
                "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
                "MaxFailedIndexesExceeded", "PodFailurePolicy")),
            targetReplicatedJobs=list_of(string)))),
    replicatedJobs=list_of(record(
        "name template", name=name, replicas=positive,
        template=record("spec", metadata=metadata(""), spec=job_spec))))
tf_replica = record(
    "template", replicas=positive, template=pod_template,
    restartPolicy=one_of("Always", "OnFailure", "Never", "ExitCode"))


def kind(version, word, meta=None, required="spec", **fields):
    return (version, word), record(
        f"apiVersion kind metadata {required}", apiVersion=one_of(version),
        kind=one_of(word), metadata=meta or metadata(), **fields)


TRAINER = "trainer.kubeflow.org/v1alpha1"
SCHEMAS = dict([
    kind("v1", "ConfigMap", required="data", data=names_to(
        {"type": "string"}, r"^[-._a-zA-Z0-9]{1,253}$")),
    kind("v1", "Secret", required="type stringData", stringData=names_to(
        {"type": "string"}, r"^[-._a-zA-Z0-9]{1,253}$"),
         type=one_of("kubernetes.io/dockerconfigjson")),
    kind("v1", "PersistentVolumeClaim", spec=record(
        "accessModes resources", storageClassName=string,
        accessModes=list_of(one_of("ReadWriteMany", "ReadWriteOnce",
                                   "ReadOnlyMany", "ReadWriteOncePod")),
        resources=record("requests", requests=quantities))),
    kind("v1", "Service", metadata(pattern=SERVICE_NAME), spec=record(
        "selector ports", clusterIP=one_of("None"),
        publishNotReadyAddresses=boolean, selector=labels,
        ports=list_of(record(
            "port", name=matching(DNS_LABEL, 63), port=port_number,
            targetPort={"anyOf": [matching(PORT_NAME), port_number]})))),
    kind("batch/v1", "Job", spec=job_spec),
    kind("policy/v1", "PodDisruptionBudget", spec=record(
        "minAvailable selector", minAvailable=positive, selector=selector)),
    kind("networking.k8s.io/v1", "NetworkPolicy", spec=record(
        "podSelector", podSelector=selector,
        policyTypes=list_of(one_of("Ingress", "Egress")),
        ingress=list_of(record(**{
            "from": list_of(record("podSelector", podSelector=selector,
                                   namespaceSelector=record())),
            "ports": list_of(record("port", port={
                "anyOf": [matching(PORT_NAME), port_number]}))})))),
    kind("jobset.x-k8s.io/v1alpha2", "JobSet", metadata(pattern=SERVICE_NAME),
         spec=jobset_spec),
    kind(TRAINER, "TrainingRuntime", spec=record(
        "template", mlPolicy=record(numNodes=positive, torch=record()),
        template=record("spec", metadata=metadata(""), spec=jobset_spec))),
    kind(TRAINER, "TrainJob", metadata(pattern=SERVICE_NAME), spec=record(
        "runtimeRef", runtimeRef=record(
            "name", name=string, apiGroup=one_of("trainer.kubeflow.org"),
            kind=one_of("TrainingRuntime", "ClusterTrainingRuntime")),
        trainer=record(numNodes=positive, image=string, env=list_of(record()),
                       command=list_of(string), args=list_of(string),
                       resourcesPerNode=resources))),
    kind("kubeflow.org/v1", "TFJob", metadata(pattern=SERVICE_NAME), spec=record(
        "tfReplicaSpecs", tfReplicaSpecs=record(
            Chief=tf_replica, Master=tf_replica, PS=tf_replica,
            Worker=tf_replica, Evaluator=tf_replica))),
])

# The published example, without image and command: examples/tensorflow/dist-mnist
# of training-operator v1.8.
TF_EXAMPLE = {role: {"replicas": count, "restartPolicy": "Never", "template": {
    "spec": {"containers": [{"name": "tensorflow"}]}}}
    for role, count in (("PS", 2), ("Worker", 4))}


def schema_problems(objects):
    for each in objects:
        schema = SCHEMAS.get((each.get("apiVersion"), each.get("kind")))
        if schema is None:
            yield f"schema: {each.get('apiVersion')} {each.get('kind')}: unknown"
            continue
        validator = jsonschema.Draft7Validator(schema)
        for error in validator.iter_errors(each):
            path = "/".join(map(str, error.absolute_path))
            yield f"schema: {each['kind']} {path}: {error.message[:200]}"


def unique_problems(objects):
    seen = [(each["kind"], each["metadata"]["name"]) for each in objects]
    for each in {each for each in seen if seen.count(each) > 1}:
        yield f"unique: {each} is there twice"


def twice(words):
    return sorted({word for word in words if words.count(word) > 1})


def bytes_of(quantity):
    found = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(quantity))
    powers = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
              "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(found[1]) * powers[found[2]]


def argument(words, flag):
    for word in words:
        if word.startswith(flag + "="):
            return word.split("=", 1)[1]
    return None


def checkpoint_dir(words):
    for word in words:
        if word.startswith("--set=checkpoint.dir="):
            return word.split("=", 2)[2]
    return None


def resource_problems(pod):
    sizes = pod.container.get("resources", {})
    for key, value in sizes.get("requests", {}).items():
        if bytes_of(sizes.get("limits", {}).get(key, value)) < bytes_of(value):
            yield f"resources: {key}: the limit is below the request"


def volume_problems(pod, objects, external):
    volumes = pod.spec.get("volumes", [])
    mounts = pod.container.get("volumeMounts", [])
    listed = [each["name"] for each in volumes]
    for each in twice(listed):
        yield f"volumes: {each} is there twice"
    for each in twice([mount["mountPath"] for mount in mounts]):
        yield f"volumes: two at {each}"
    mounted = [mount["name"] for mount in mounts]
    for each in set(mounted) ^ set(listed):
        yield f"volumes: {each} is not both listed and mounted"
    for each in volumes:
        for key, field, word in (
                ("configMap", "name", "ConfigMap"),
                ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim")):
            target = each.get(key, {}).get(field)
            if target and target not in external and \
                    not controllers.find(objects, word, target):
                yield f"volumes: there is no {word} {target}"


def secret_problems(pod, objects, external):
    for each in pod.spec.get("imagePullSecrets", []):
        found = controllers.find(objects, "Secret", each["name"])
        if found:
            try:
                json.loads(found["stringData"][".dockerconfigjson"])["auths"]
            except (KeyError, ValueError, TypeError):
                yield f"secrets: {each['name']} has no .dockerconfigjson"
        elif each["name"] not in external:
            yield f"secrets: there is no Secret {each['name']}"


def port_of(pod, port):
    for each in pod.container.get("ports", []):
        if port in (each.get("name"), each["containerPort"]):
            return each["containerPort"]
    return None


def probe_problems(pod, words):
    served = argument(words, "--metrics-port")
    if not served:
        yield f"probes: {pod.name} serves nothing: --metrics-port"
        return
    host, _, port = served.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        yield f"probes: the kubelet does not reach --metrics-port={served}"
    for each, path in (("startupProbe", "/status"), ("livenessProbe", "/status"),
                       ("readinessProbe", "/healthz")):
        get = pod.container.get(each, {}).get("httpGet", {"path": "", "port": 0})
        if get["path"] != path:
            yield f"probes: {each} asks {get['path']} and not {path}"
        if str(port_of(pod, get["port"])) != port:
            yield f"probes: {each} asks port {get['port']}, served is {served}"


def security_problems(pod):
    inside = pod.container.get("securityContext", {})
    outside = pod.spec.get("securityContext", {})
    mounts = [each["mountPath"] for each in pod.container.get("volumeMounts", [])]
    for value, text in (
            (outside.get("runAsNonRoot") and outside.get("runAsUser"), "root"),
            (outside.get("seccompProfile", {}).get("type") == "RuntimeDefault",
             "no seccomp profile"),
            (inside.get("allowPrivilegeEscalation") is False, "escalation"),
            (inside.get("readOnlyRootFilesystem"), "a root that is written"),
            (inside.get("capabilities", {}).get("drop") == ["ALL"],
             "capabilities"),
            (outside.get("fsGroup"), "no group that may write volumes"),
            (pod.spec.get("automountServiceAccountToken") is False, "a token"),
            # A Service's variables begin with its name: CAPSTAN_...
            (pod.spec.get("enableServiceLinks") is False, "Services' variables"),
            ("/tmp" in mounts, "no /tmp")):
        if not value:
            yield f"security: {pod.name} has {text}"


def job_problems(pod):
    spec = pod.owner.spec
    if pod.spec.get("restartPolicy") not in ("Never", "OnFailure"):
        yield f"job: restartPolicy {pod.spec.get('restartPolicy')}"
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    if rules and pod.spec.get("restartPolicy") != "Never":
        yield "job: podFailurePolicy needs restartPolicy Never"
    if spec.get("completionMode") != "Indexed":
        yield "job: without an index the pods have no names"
    if spec.get("completions") != spec.get("parallelism"):
        yield "job: all of its pods have to run at once"
    if spec.get("backoffLimit") != 0 and ("backoffLimitPerIndex" not in spec or
                                          spec.get("maxFailedIndexes") != 0):
        yield "job: the failures of all its pods count together, or one may be lost"
    codes = [each for each in rules if "onExitCodes" in each]
    if [each["onExitCodes"]["values"] for each in codes] != [PERMANENT] or \
            codes[0]["onExitCodes"]["operator"] != "In" or \
            codes[0]["action"] != "FailJob":
        yield f"job: the codes that a retry does not mend are {PERMANENT}"
    for each in codes:
        if each["onExitCodes"].get("containerName") != pod.container["name"]:
            yield "job: podFailurePolicy names another container"
    if not any(each["action"] == "Ignore" and any(
            condition["type"] == "DisruptionTarget" and
            condition["status"] == "True"
            for condition in each.get("onPodConditions", [])) for each in rules):
        yield "job: an eviction counts as a failure"
    if pod.spec.get("terminationGracePeriodSeconds", 30) <= GRACE + STOP:
        yield "job: the checkpoint after a signal takes longer than the grace"
    if pod.container.get("command") != ["capstan", "run"]:
        yield "job: the command is not capstan run"


def command_problems(pod, objects, words):
    """Files that the command names; variables that nothing sets."""
    if int(argument(words, "--join-timeout") or LONGEST_DELAY) <= LONGEST_DELAY:
        yield f"command: {pod.name} waits shorter than a retry may take"
    mounts = {each["mountPath"]: each
              for each in pod.container.get("volumeMounts", [])}
    for word in words + list(controllers.environment(pod, objects).values()):
        if re.search(r"\$\([A-Za-z_]", word):
            yield f"command: nothing sets the variable in {word}"
    volumes = {each["name"]: each for each in pod.spec.get("volumes", [])}
    if words[-1].endswith(".json"):
        folder, _, key = words[-1].rpartition("/")
        mount = mounts.get(folder, {"name": None})
        target = volumes.get(mount["name"], {}).get("configMap", {}).get("name")
        found = target and controllers.find(objects, "ConfigMap", target)
        if not found or key not in found["data"]:
            yield f"command: no ConfigMap has {words[-1]}"
    directory = checkpoint_dir(words)
    if directory:
        mount = mounts.get(os.path.dirname(directory), {"name": None})
        if "persistentVolumeClaim" not in volumes.get(mount["name"], {}) or \
                mount.get("readOnly"):
            yield f"command: {directory} is on no claim that may be written"


def set_problems(spec):
    named = [each["name"] for each in spec["replicatedJobs"]]
    for each in twice(named):
        yield f"jobset: two replicated jobs {each}"
    policies = [spec.get("successPolicy", {})] + \
        spec.get("failurePolicy", {}).get("rules", [])
    for policy in policies:
        for each in policy.get("targetReplicatedJobs", []):
            if each not in named:
                yield f"jobset: a policy names {each}, which is not there"
    targets = spec.get("successPolicy", {}).get("targetReplicatedJobs", [])
    if targets not in (["chief"], ["node"]):
        yield "jobset: the run is over when its chief has ended"
    if not spec.get("network", {}).get("publishNotReadyAddresses", True):
        yield "jobset: a pod that is not ready would lose its name"
    failure = spec.get("failurePolicy")
    if failure and (failure.get("restartStrategy") != "BlockingRecreate" or
                    not any(each["action"] == "FailJobSet" and
                            each.get("onJobFailureReasons") ==
                            ["PodFailurePolicy"]
                            for each in failure.get("rules", []))):
        yield "jobset: a restart before the old chief has ended, or of a wrong job"


def trainer_problems(objects):
    for each in objects:
        if each["kind"] != "TrainJob":
            continue
        reference = each["spec"]["runtimeRef"]
        runtime = controllers.find(objects, reference.get("kind"),
                                   reference["name"])
        if not runtime:
            yield f"trainer: there is no runtime {reference}"
            continue
        steps = [job for job in runtime["spec"]["template"]["spec"]
                 ["replicatedJobs"] if job["template"].get("metadata", {}).get(
                     "labels", {}).get(controllers.ANCESTOR) == "trainer"]
        if len(steps) != 1:
            yield "trainer: one replicated job is the step trainer"
            continue
        if steps[0].get("replicas", 1) != 1:
            yield "trainer: the step trainer has one replica"
        containers = steps[0]["template"]["spec"]["template"]["spec"]["containers"]
        if "node" not in [each["name"] for each in containers]:
            yield "trainer: the container of the step trainer is node"


def tfjob_problems(objects):
    for each in objects:
        if each["kind"] != "TFJob":
            continue
        replicas = copy.deepcopy(each["spec"]["tfReplicaSpecs"])
        for spec in replicas.values():
            for one in spec["template"]["spec"]["containers"]:
                one.pop("image", None)
                one.pop("command", None)
        if replicas != TF_EXAMPLE:
            yield "tfjob: more than image and command differs from the example"


def service_problems(objects, services, all_pods):
    for pod in all_pods:
        wanted = pod.spec.get("subdomain")
        if pod.services:
            continue
        if not any(name.startswith(f"{pod.hostname}.") for name in
                   controllers.dns_names(pod, services)):
            yield f"service: none that is headless gives {pod.name}.{wanted} its name"
        if len(pod.name) > 63:
            yield f"service: the name {pod.name} is too long"
    for each in objects:
        if each["kind"] != "Service":
            continue
        if not each["spec"].get("publishNotReadyAddresses"):
            yield "service: a pod that is not ready would lose its name"
        for port in each["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            if any(port_of(pod, target) != port["port"] for pod in all_pods if
                   controllers.selects(each["spec"]["selector"], pod.labels)):
                yield f"service: pods have no port {target}, or another number"


def budget_problems(objects, all_pods):
    covered = []
    for each in objects:
        if each["kind"] != "PodDisruptionBudget":
            continue
        chosen = [pod.name for pod in all_pods if controllers.selects(
            each["spec"]["selector"], pod.labels)]
        covered += chosen
        title = f"budget: {each['metadata']['name']}"
        if not chosen:
            yield f"{title} selects no pod"
        elif each["metadata"]["name"].endswith("-state") and \
                each["spec"]["minAvailable"] != len(chosen):
            yield f"{title} keeps {each['spec']['minAvailable']} of {len(chosen)}"
        elif each["spec"]["minAvailable"] > len(chosen):
            yield f"{title}: there are fewer pods"
    for each in twice(covered):
        yield f"budget: two select {each}: no eviction works"


def network_problems(objects, all_pods):
    """Pods of the run reach each other, and no others reach them: the kubelet,
    which probes, passes in any case."""
    for each in objects:
        if each["kind"] != "NetworkPolicy":
            continue
        spec = each["spec"]
        rules = spec.get("ingress", [])
        inside = [peer["podSelector"] for rule in rules if "ports" not in rule
                  for peer in rule.get("from", [])]
        if any("podSelector" not in peer for rule in rules
               for peer in rule.get("from") or [{}]):
            yield "network: other pods reach the run's"
        if any("namespaceSelector" in peer and
               rule.get("ports") != [{"port": "health"}]
               for rule in rules for peer in rule.get("from", [])):
            yield "network: pods of other namespaces reach more than the metrics"
        for pod in all_pods:
            if not controllers.selects(spec["podSelector"], pod.labels):
                yield f"network: {pod.name} is not protected"
            if not any(controllers.selects(peer, pod.labels) for peer in inside):
                yield f"network: {pod.name} reaches no other"
        if spec.get("policyTypes") != ["Ingress"]:
            yield "network: the pods need name servers"


def addresses(words, variables):
    """Role -> {index: address} of a command, and this process's place."""
    if "TF_CONFIG" in variables:
        config = json.loads(variables["TF_CONFIG"])
        cluster = {role: dict(enumerate(tasks)) if isinstance(tasks, list) else
                   {int(index): task for index, task in tasks.items()}
                   for role, tasks in config["cluster"].items()}
        task = config["task"]
        return cluster, (task["type"], int(task["index"]))
    cluster = {}
    for role, flag in (("chief", "chief"), ("ps", "ps"), ("worker", "worker")):
        hosts = argument(words, f"--{flag}_hosts")
        if hosts:
            cluster[role] = dict(enumerate(hosts.split(",")))
    return cluster, (argument(words, "--job_name"),
                     int(argument(words, "--task_index")))


def cluster_problems(objects, services, all_pods):
    """Each address is that of the pod whose place it is."""
    places, clusters = {}, []
    for pod in all_pods:
        try:
            cluster, place = addresses(controllers.command(pod, objects),
                                       controllers.environment(pod, objects))
        except (ValueError, KeyError, TypeError) as error:
            yield f"cluster: {pod.name} does not know its place: {error!r}"
            return
        if place in places:
            yield f"cluster: two pods are {place}"
        places[place] = pod
        clusters.append((pod, cluster, place))
    for pod, cluster, place in clusters:
        for role, tasks in cluster.items():
            for index, address in tasks.items():
                target = places.get((role, index))
                host, _, port = address.rpartition(":")
                if not target or host not in controllers.dns_names(target,
                                                                   services):
                    yield f"cluster: {pod.name} finds no {role} {index} at {host}"
                elif target.container.get("ports") and \
                        not port_of(target, int(port)):
                    yield f"cluster: {role} {index} has no port {port}"
            unlisted = [each for each in places if each[0] == role and
                        each[1] not in tasks]
            if unlisted and place[0] != "worker" and role == "ps":
                yield f"cluster: {pod.name} does not list {unlisted}"
            if unlisted and argument(controllers.command(pod, objects),
                                     "--job_name"):
                yield f"cluster: {pod.name} does not list {unlisted}"


def pod_problems(objects, all_pods, external):
    for pod in all_pods:
        words = controllers.command(pod, objects)
        names = [each["name"] for each in pod.container.get("ports", [])]
        for each in twice(names):
            yield f"ports: two are {each}"
        yield from resource_problems(pod)
        yield from volume_problems(pod, objects, external)
        yield from secret_problems(pod, objects, external)
        if pod.services:  # TFJob: as published
            if pod.container["name"] != "tensorflow":
                yield "tfjob: no container tensorflow"
            continue
        yield from probe_problems(pod, words)
        yield from security_problems(pod)
        yield from job_problems(pod)
        yield from command_problems(pod, objects, words)


def problems(objects, external=("data", "pull")):
    """What is wrong with OBJECTS: the rule, and what it found. EXTERNAL names
    objects that the cluster has."""
    found = list(schema_problems(objects)) + list(unique_problems(objects))
    if found:
        return found
    found = list(trainer_problems(objects)) + list(tfjob_problems(objects))
    for each in objects:
        if each["kind"] == "JobSet":
            found += set_problems(each["spec"])
        elif each["kind"] == "TrainingRuntime":
            found += set_problems(each["spec"]["template"]["spec"])
    if any(each.startswith("trainer: there is no") for each in found):
        return found
    try:
        workloads, more = controllers.workloads_of(objects)
        all_pods = [pod for each in workloads for pod in each.pods]
        services = [each for each in objects if each["kind"] == "Service"] + more
        found += pod_problems(objects, all_pods, external)
        found += service_problems(objects, services, all_pods)
        found += budget_problems(objects, all_pods)
        found += network_problems(objects, all_pods)
        found += cluster_problems(objects, services, all_pods)
    except (KeyError, TypeError) as error:
        found.append(f"reference: {error!r} is not there")
    return found


def selectors_of(each):
    spec = each["spec"]
    if each["kind"] == "NetworkPolicy":
        yield spec["podSelector"]
        for rule in spec.get("ingress", []):
            for peer in rule.get("from", []):
                yield peer["podSelector"]
    elif each["kind"] in ("Service", "PodDisruptionBudget"):
        yield spec["selector"]


def together_problems(forms):
    """What is wrong if all FORMS are in one namespace: objects, or directories of
    checkpoints, of one name, and selectors of other forms' pods."""
    shared = {text for text in sorted_text(manifests.kustomize(
        f"{manifests.FOLDER}/common"))}
    owners, directories, made = {}, {}, {}
    for form, objects in forms.items():
        workloads, services = controllers.workloads_of(objects)
        made[form] = [pod for each in workloads for pod in each.pods]
        own = [each for each in objects if sorted_text([each])[0] not in shared]
        names = {(each["kind"], each["metadata"]["name"]) for each in own}
        names |= {("Service", each["metadata"]["name"]) for each in services}
        names |= {("Job", each.name) for each in workloads}
        for name in names & set(owners):
            yield f"together: {form} and {owners[name]} both have {name}"
        owners.update(dict.fromkeys(names, form))
        for pod in made[form]:
            directory = checkpoint_dir(controllers.command(pod, objects))
            other = directories.setdefault(directory, form)
            if directory and other != form and "helm" not in (form, other):
                yield f"together: {form} and {other} write {directory}"
    for form, objects in forms.items():
        for each in objects:
            for selector in selectors_of(each) if "spec" in each else ():
                for other, pods in made.items():
                    if other != form and any(controllers.selects(
                            selector, pod.labels) for pod in pods):
                        yield (f"together: {each['kind']} of {form} selects pods "
                               f"of {other}")


# Mutations: the form, the kind and (beginning of) the name of the object, the path
# in it, the new value (DROP: without), and the rule that refuses it.
DROP = object()
OWN_PODS = {"from": [{"podSelector": {"matchLabels": {
    "app.kubernetes.io/name": "capstan",
    "app.kubernetes.io/instance": "capstan"}}}]}
POD = "spec/template/spec"
BOX = f"{POD}/containers/0"
SET = "spec/replicatedJobs"
NAMED = {"app.kubernetes.io/name": "capstan"}
RUNTIME = "spec/template/spec/replicatedJobs"
MUTATIONS = [
    ("plain", "Job", "capstan-ps", "apiVersion", "batch/v1beta1", "schema"),
    ("plain", "Job", "capstan-ps", "metadata/name", "Capstan_ps", "schema"),
    ("plain", "Job", "capstan-ps", "metadata/name", "capstan-chief", "unique"),
    ("plain", "Job", "capstan-ps", "metadata/name", "capstan-server", "cluster"),
    ("plain", "Job", "capstan-ps", "spec/parallelism", 1, "job"),
    ("plain", "Job", "capstan-ps", "spec/completionMode", DROP, "job"),
    ("plain", "Job", "capstan-ps", "spec/completions", "2", "schema"),
    ("plain", "Job", "capstan-ps", "spec/restartPolicy", "Never", "schema"),
    ("plain", "Job", "capstan-ps", "spec/podFailurePolicy/rules/0/onExitCodes/"
     "values", [1, 2, 138], "job"),
    ("plain", "Job", "capstan-ps", "spec/podFailurePolicy/rules/0/onExitCodes/"
     "containerName", "ps", "job"),
    ("plain", "Job", "capstan-ps", "spec/podFailurePolicy/rules/1", DROP, "job"),
    ("plain", "Job", "capstan-ps", f"{POD}/restartPolicy", "Always", "job"),
    ("plain", "Job", "capstan-ps", f"{POD}/restartPolicy", "OnFailure", "job"),
    ("plain", "Job", "capstan-ps", f"{POD}/terminationGracePeriodSeconds", 30,
     "job"),
    ("plain", "Job", "capstan-ps", f"{POD}/subdomain", "other", "service"),
    ("plain", "Job", "capstan-ps", f"{POD}/securityContext/runAsUser", 0,
     "security"),
    ("plain", "Job", "capstan-ps", f"{POD}/securityContext/fsGroup", DROP,
     "security"),
    ("plain", "Job", "capstan-ps", f"{POD}/securityContext/seccompProfile", DROP,
     "security"),
    ("plain", "Job", "capstan-ps", f"{POD}/enableServiceLinks", DROP, "security"),
    ("plain", "Job", "capstan-ps", f"{BOX}/securityContext/capabilities/drop",
     ["NET_RAW"], "security"),
    ("plain", "Job", "capstan-ps", f"{BOX}/securityContext/"
     "readOnlyRootFilesystem", False, "security"),
    ("plain", "Job", "capstan-ps", f"{BOX}/securityContext/"
     "allowPrivilegeEscalation", DROP, "security"),
    ("plain", "Job", "capstan-ps", f"{BOX}/image", "capstan", "schema"),
    ("plain", "Job", "capstan-ps", f"{BOX}/command", ["capstan", "local"], "job"),
    ("plain", "Job", "capstan-ps", f"{BOX}/args/1", "--task_index=0", "cluster"),
    ("plain", "Job", "capstan-ps", f"{BOX}/args/1", "--task_index=$(INDEX)",
     "command"),
    ("plain", "Job", "capstan-ps", f"{BOX}/args/5", "--metrics-port=2290",
     "probes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/args/5", "--metrics-port=0.0.0.0:2291",
     "probes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/livenessProbe/httpGet/path", "/healthz",
     "probes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/readinessProbe/httpGet/port", "cluster",
     "probes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/startupProbe", DROP, "probes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/startupProbe/periodSeconds", 0,
     "schema"),
    ("plain", "Job", "capstan-ps", f"{BOX}/ports/0/containerPort", 2223,
     "service"),
    ("plain", "Job", "capstan-ps", f"{BOX}/ports/0/name", "a-name-beyond-15",
     "schema"),
    ("plain", "Job", "capstan-ps", f"{BOX}/ports/1/name", "cluster", "ports"),
    ("plain", "Job", "capstan-ps", f"{BOX}/resources/limits/memory", "256Mi",
     "resources"),
    ("plain", "Job", "capstan-ps", f"{BOX}/resources/limits/memory", "2 GB",
     "schema"),
    ("plain", "Job", "capstan-ps", f"{BOX}/volumeMounts/1/name", "checkpoint",
     "volumes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/volumeMounts/1/mountPath", "/tmp",
     "volumes"),
    ("plain", "Job", "capstan-ps", f"{BOX}/envFrom/0/configMapRef/name", "cluster",
     "reference"),
    ("plain", "Job", "capstan-ps", f"{POD}/volumes/1/persistentVolumeClaim/"
     "claimName", "checkpoints", "volumes"),
    ("plain", "Job", "capstan-ps", f"{POD}/imagePullSecrets", [{"name": "none"}],
     "secrets"),
    ("plain", "Job", "capstan-ps", "spec/template/metadata/labels/"
     "app.kubernetes.io~component", "server", "budget"),
    ("plain", "Job", "capstan-ps", "spec/template/metadata/labels/"
     "app.kubernetes.io~name", "ps", "service"),
    ("plain", "Job", "capstan-ps", "spec/template/metadata/labels/"
     "app.kubernetes.io~name", "a value", "schema"),
    ("plain", "Job", "capstan-ps", "spec/backoffLimitPerIndex", DROP, "job"),
    ("plain", "Job", "capstan-ps", "spec/maxFailedIndexes", DROP, "job"),
    ("plain", "Job", "capstan-ps", f"{BOX}/args/6", "--join-timeout=600",
     "command"),
    ("plain", "Job", "capstan-chief", f"{BOX}/args/8", "/job/other.json",
     "command"),
    ("plain", "Job", "capstan-chief", f"{BOX}/args/7",
     "--set=checkpoint.dir=/tmp/capstan", "command"),
    ("plain", "Job", "capstan-chief", f"{BOX}/args/7",
     "--set=checkpoint.dir=/checkpoints/capstan-set", "together"),
    ("plain", "Service", "capstan", "metadata/name", "capstan-set", "together"),
    ("plain", "Service", "capstan", "spec/selector", NAMED, "together"),
    ("plain", "PodDisruptionBudget", "capstan-worker", "metadata/name",
     "capstan-set-state", "together"),
    ("plain", "PodDisruptionBudget", "capstan-state", "spec/selector/matchLabels",
     NAMED, "together"),
    ("plain", "NetworkPolicy", "capstan", "spec/podSelector/matchLabels", NAMED,
     "together"),
    ("plain", "NetworkPolicy", "capstan", "spec/ingress/0/from/0/podSelector/"
     "matchLabels", NAMED, "together"),
    ("plain", "Job", "capstan-chief", f"{BOX}/volumeMounts/1/readOnly", True,
     "command"),
    ("plain", "Service", "capstan", "metadata/name", "capstan-net", "service"),
    ("plain", "Service", "capstan", "metadata/name", "1capstan", "schema"),
    ("plain", "Service", "capstan", "spec/clusterIP", DROP, "service"),
    ("plain", "Service", "capstan", "spec/publishNotReadyAddresses", DROP,
     "service"),
    ("plain", "Service", "capstan", "spec/ports/0/targetPort", "grpc", "service"),
    ("plain", "ConfigMap", "capstan-cluster", "data/CLUSTER_PS",
     "capstan-ps-0.capstan:2222", "cluster"),
    ("plain", "ConfigMap", "capstan-cluster", "data/CLUSTER_WORKERS",
     "capstan-worker-0.capstan:2222,capstan-worker-1.capstan:2223", "cluster"),
    ("plain", "ConfigMap", "capstan-job", "data/job.json", DROP, "command"),
    ("plain", "PersistentVolumeClaim", "capstan", "spec/accessModes/0",
     "ReadWriteAll", "schema"),
    ("plain", "PersistentVolumeClaim", "capstan", "spec/resources", DROP, "schema"),
    ("plain", "PodDisruptionBudget", "capstan-state", "spec/minAvailable", 2,
     "budget"),
    ("plain", "PodDisruptionBudget", "capstan-state", "spec/maxUnavailable", 0,
     "schema"),
    ("plain", "PodDisruptionBudget", "capstan-state", "spec/selector/"
     "matchExpressions", DROP, "budget"),
    ("plain", "PodDisruptionBudget", "capstan-worker", "spec/selector/matchLabels/"
     "app.kubernetes.io~component", "trainer", "budget"),
    ("plain", "NetworkPolicy", "capstan", "spec/ingress/0/from/0/podSelector/"
     "matchLabels/app.kubernetes.io~component", "worker", "network"),
    ("plain", "NetworkPolicy", "capstan", "spec/ingress", [OWN_PODS, {"ports": [
        {"port": "health"}]}], "network"),
    ("plain", "NetworkPolicy", "capstan", "spec/ingress", [OWN_PODS, {"from": [
        {"podSelector": {"matchLabels": {"app": "prometheus"}},
         "namespaceSelector": {}}]}], "network"),
    ("plain", "NetworkPolicy", "capstan", "spec/podSelector/matchLabels/"
     "app.kubernetes.io~component", "ps", "network"),
    ("plain", "NetworkPolicy", "capstan", "spec/policyTypes", ["Egress"],
     "network"),
    ("jobset", "JobSet", "capstan", "apiVersion", "jobset.x-k8s.io/v1", "schema"),
    ("jobset", "JobSet", "capstan", "metadata/name", "other", "cluster"),
    ("jobset", "JobSet", "capstan", "spec/network/subdomain", "net", "cluster"),
    ("jobset", "JobSet", "capstan", "spec/network/publishNotReadyAddresses", False,
     "jobset"),
    ("jobset", "JobSet", "capstan", "spec/network/enableDNSHostnames", False,
     "service"),
    ("jobset", "JobSet", "capstan", "spec/successPolicy/operator", "Each",
     "schema"),
    ("jobset", "JobSet", "capstan", "spec/successPolicy/targetReplicatedJobs/0",
     "leader", "jobset"),
    ("jobset", "JobSet", "capstan", "spec/successPolicy/targetReplicatedJobs/0",
     "ps", "jobset"),
    ("jobset", "JobSet", "capstan", "spec/failurePolicy/restartStrategy",
     "Recreate", "jobset"),
    ("jobset", "JobSet", "capstan", "spec/failurePolicy/rules", DROP, "jobset"),
    ("jobset", "JobSet", "capstan", "spec/failurePolicy/rules/0/"
     "onJobFailureReasons/0", "Failed", "schema"),
    ("jobset", "JobSet", "capstan", f"{SET}/2/template/spec/maxFailedIndexes", 1,
     "job"),
    ("jobset", "NetworkPolicy", "capstan", "spec/podSelector/matchLabels",
     {"jobset.sigs.k8s.io/jobset-name": "capstan"}, "network"),
    ("jobset", "JobSet", "capstan", f"{SET}/1/name", "server", "cluster"),
    ("jobset", "JobSet", "capstan", f"{SET}/1/replicas", 2, "cluster"),
    ("jobset", "JobSet", "capstan", f"{SET}/1/template/{BOX}/livenessProbe/"
     "httpGet/path", "/healthz", "probes"),
    ("trainer", "TrainingRuntime", "capstan-ps", f"{RUNTIME}/1/template/metadata/"
     "labels", DROP, "trainer"),
    ("trainer", "TrainingRuntime", "capstan-ps", f"{RUNTIME}/1/replicas", 2,
     "trainer"),
    ("trainer", "TrainingRuntime", "capstan-ps", f"{RUNTIME}/1/template/"
     f"{BOX}/name", "worker", "trainer"),
    ("trainer", "TrainingRuntime", "capstan-ps", "spec/mlPolicy/torch", DROP,
     "command"),
    ("trainer", "TrainingRuntime", "capstan-ps", "spec/mlPolicy/tf", {}, "schema"),
    ("trainer", "TrainingRuntime", "capstan-ps", f"{RUNTIME}/0/template/"
     f"{BOX}/env/0/valueFrom/fieldRef/fieldPath", "metadata.labels['name']",
     "cluster"),
    ("trainer", "TrainingRuntime", "capstan-ps", f"{RUNTIME}/0/template/spec/"
     "completions", 3, "job"),
    ("trainer", "TrainJob", "points", "spec/runtimeRef/name", "torch", "trainer"),
    ("trainer", "TrainJob", "points", "spec/trainer", DROP, "command"),
    ("trainer", "TrainJob", "points", "spec/trainer/numNodes", 0, "schema"),
    ("tfjob", "TFJob", "dist", "apiVersion", "kubeflow.org/v1beta2", "schema"),
    ("tfjob", "TFJob", "dist", "spec/tfReplicaSpecs/Worker/restartPolicy",
     "Sometimes", "schema"),
    ("tfjob", "TFJob", "dist", "spec/tfReplicaSpecs/Worker/replicas", 3, "tfjob"),
    ("tfjob", "TFJob", "dist", "spec/tfReplicaSpecs/PS/template/spec/containers/0/"
     "name", "capstan", "tfjob"),
    ("tfjob", "TFJob", "dist", "spec/tfReplicaSpecs/PS/template/spec/containers/0/"
     "image", DROP, "schema"),
    ("tfjob", "TFJob", "dist", "spec/tfReplicaSpecs/Server", {}, "schema"),
]

BAD_VALUES = [{"ps": {"replicas": 0}}, {"worker": {"replicas": "2"}},
              {"strategy": "ring"}, {"staleness": -1}, {"staleness": "some"},
              {"replicas": 2}, {"image": {"repository": ""}},
              {"terminationGracePeriodSeconds": 30}, {"trainer": {"gpus": 0.5}},
              {"checkpoints": {"accessMode": "ReadOnlyMany"}},
              {"joinTimeout": 600}, {"ttlSecondsAfterFinished": -1},
              {"podLabels": {"app.kubernetes.io/component": "ps"}},
              {"env": {"NCCL_DEBUG": "INFO"}}, {"nodeSelector": {}},
              {"ps": {"tolerations": {}}}, {"image": {"digest": "latest"}},
              {"registry": {"password": "p"}}]

# Values and a release's name that the templates refuse, and what they say.
REFUSED = [({"trainer": {"gpus": 1}}, "demo", "image.tag"),
           ({}, "1demo", "begin with a letter"), ({}, "demo.1", "a-z, 0-9 and -")]


def mutate(objects, word, title, path, value):
    target = next(each for each in objects if each["kind"] == word and
                  each["metadata"]["name"].startswith(title))
    steps = [int(step) if step.isdigit() else step.replace("~", "/")
             for step in path.split("/")]
    for step in steps[:-1]:
        target = target[step]
    if value is not DROP:
        target[steps[-1]] = value
    else:
        del target[steps[-1]]


def sorted_text(objects):
    return sorted(json.dumps(each, sort_keys=True) for each in objects)


def check_forms(forms):
    for form, objects in forms.items():
        found = problems(objects)
        assert not found, f"{form}: {found}"
        print(f"{form}: {len(objects)} objects follow the rules")


def check_together(forms):
    found = list(together_problems(forms))
    assert not found, found
    print(f"{', '.join(forms)}: together in one namespace")


def check_chart(program):
    forms = manifests.chart_forms(program)
    check_defaults({"helm": forms["helm"]})
    check_forms(forms)
    check_together({**manifests.forms(), "helm": forms["helm"]})
    ps, chief, worker = (
        controllers.find(forms["helm-coordinate"], "Job", f"demo-{role}")["spec"]
        ["template"]["spec"] for role in ("ps", "chief", "worker"))
    for key in ("nodeSelector", "tolerations", "runtimeClassName"):
        assert key in worker and key not in ps and key not in chief, key
    policy = controllers.find(forms["helm-coordinate"], "NetworkPolicy", "demo")
    assert policy["spec"]["ingress"][1] == {
        "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {
            "app.kubernetes.io/name": "prometheus"}}}],
        "ports": [{"port": "health"}]}, policy
    assert "affinity" in ps and "affinity" in chief and "affinity" not in worker
    assert "runAsGroup" not in ps["securityContext"], "null removes no key"
    assert ps["containers"][0]["image"] == \
        "registry.example.com/team/capstan@sha256:" + 64 * "a"
    assert ps["imagePullSecrets"] == [{"name": "pull"}]
    for pod in (ps, chief, worker):
        box = pod["containers"][0]
        assert box["env"][0] == {"name": "CAPSTAN_SECRET_FILE",
                                 "value": "/secret/secret"}, box["env"]
        assert {"name": "secret", "mountPath": "/secret", "readOnly": True} in \
            box["volumeMounts"]
        assert {"name": "secret", "secret": {"secretName": "keys",
                                             "defaultMode": 0o440}} in pod["volumes"]
    for values, release, text in REFUSED:
        try:
            manifests.helm(program, values, release)
        except manifests.Refused as error:
            assert text in str(error), error
            continue
        assert False, f"the chart accepts {values} of {release}"


def check_defaults(forms):
    """Nobody asked for a credential, or for drains that wait; port 9100 of a host is
    node_exporter's."""
    for form, objects in forms.items():
        for each in objects:
            assert each["kind"] not in ("Secret", "PodDisruptionBudget"), \
                f"{form} has a {each['kind']} by default"
        pods = [pod for one in controllers.workloads_of(objects)[0]
                for pod in one.pods]
        for pod in pods:
            assert "imagePullSecrets" not in pod.spec, f"{form}: {pod.name}"
            assert port_of(pod, 9100) is None, f"{form}: {pod.name}"


def check_first():
    """The form that a reader is led to."""
    with open("docs/kubernetes.md") as page:
        applied = re.findall(r"kubectl apply -f deploy/kubernetes/(\S+)", page.read())
    assert applied[0] == "jobset.yaml", applied


def compare_kustomize():
    for folder in ("common", "plain"):
        path = f"{manifests.FOLDER}/{folder}"
        real = manifests.kubectl_kustomize(path)
        assert real is None or sorted_text(real) == \
            sorted_text(manifests.kustomize(path)), f"kubectl kustomize {path}"
        print(f"{folder}: {'as' if real else 'not compared with'} kubectl's")


def check_mutations(forms):
    for form, word, title, path, value, rule in MUTATIONS:
        objects = copy.deepcopy(forms[form])
        mutate(objects, word, title, path, value)
        found = problems(objects) if rule != "together" else \
            list(together_problems({**forms, form: objects}))
        assert any(each.startswith(f"{rule}:") for each in found), \
            f"{form} {word} {path}: {rule} does not refuse it: {found}"
    for values in BAD_VALUES:
        try:
            manifests.check_values(values)
        except jsonschema.ValidationError:
            continue
        assert False, f"the chart's schema accepts {values}"
    print(f"{len(MUTATIONS)} mutations and {len(BAD_VALUES)} values are refused")


