# SPDX-License-Identifier: Apache-2.0
"""The pods that Kubernetes' controllers make of the manifests' objects.

Sources of what each controller does:
Job       https://kubernetes.io/docs/concepts/workloads/controllers/job/
DNS       https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
JobSet    https://github.com/kubernetes-sigs/jobset, pkg/controllers
Trainer   https://github.com/kubeflow/trainer, pkg/runtime/framework/plugins
TFJob     https://github.com/kubeflow/training-operator (v1.8),
          pkg/controller.v1/tensorflow
"""
import copy
import json
import re

NAMESPACE = "default"
TF_PORT = 2222
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


class Pod:
    def __init__(self, name, owner, index, template, hostname=""):
        self.name, self.owner, self.index = name, owner, index
        self.hostname = hostname or name
        meta = template.get("metadata", {})
        self.labels = dict(meta.get("labels", {}))
        self.annotations = dict(meta.get("annotations", {}))
        self.spec = copy.deepcopy(template["spec"])
        self.services = []  # names of Services of this pod alone

    @property
    def container(self):
        return self.spec["containers"][0]


class Workload:
    """A Job, or a replica type of a TFJob, with its pods."""

    def __init__(self, name, spec, set_name="", role=""):
        self.name, self.spec, self.pods = name, spec, []
        self.set_name, self.role = set_name, role


def job_workload(job, set_name="", role=""):
    spec, name = job["spec"], job["metadata"]["name"]
    workload = Workload(name, spec, set_name, role)
    indexed = spec.get("completionMode") == "Indexed"
    count = min(spec.get("parallelism", 1), spec.get("completions", 1))
    for index in range(count):
        pod = Pod(f"{name}-{index}", workload, index, spec["template"])
        pod.labels.update({"batch.kubernetes.io/job-name": name,
                           "job-name": name})
        if indexed:
            pod.annotations[INDEX_ANNOTATION] = str(index)
            for container in pod.spec["containers"]:
                container.setdefault("env", []).append(
                    {"name": "JOB_COMPLETION_INDEX", "value": str(index)})
        workload.pods.append(pod)
    return workload


def jobset_workloads(jobset):
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    network = spec.get("network", {})
    subdomain = network.get("subdomain", name)
    service = {"metadata": {"name": subdomain}, "spec": {
        "clusterIP": "None", "selector": {JOBSET_LABEL: name},
        "publishNotReadyAddresses":
            network.get("publishNotReadyAddresses", True)}}
    workloads = []
    for replicated in spec["replicatedJobs"]:
        for number in range(replicated.get("replicas", 1)):
            job = copy.deepcopy(replicated["template"])
            job["metadata"] = {"name": f"{name}-{replicated['name']}-{number}"}
            job["spec"].setdefault("completionMode", "Indexed")
            template = job["spec"]["template"]
            template["spec"].setdefault("restartPolicy", "OnFailure")
            if network.get("enableDNSHostnames", True):
                template["spec"]["subdomain"] = subdomain
            labels = template.setdefault("metadata", {}).setdefault("labels", {})
            labels.update({
                JOBSET_LABEL: name,
                "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
                "jobset.sigs.k8s.io/job-index": str(number)})
            workloads.append(job_workload(job, name, replicated["name"]))
    return workloads, service


def upsert_env(container, name, **value):
    env = container.setdefault("env", [])
    env[:] = [each for each in env if each["name"] != name]
    env.append({"name": name, **value})


def trainjob_jobset(trainjob, runtime):
    """The JobSet that Trainer v2 makes, with its policy "torch"."""
    name, trainer = trainjob["metadata"]["name"], trainjob["spec"].get("trainer")
    policy = runtime["spec"].get("mlPolicy", {})
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    nodes = (trainer or {}).get("numNodes", policy.get("numNodes", 1))
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]
        labels = job.get("metadata", {}).get("labels", {})
        if labels.get(ANCESTOR) != "trainer":
            continue
        job["spec"].update(parallelism=nodes, completions=nodes)
        for container in job["spec"]["template"]["spec"]["containers"]:
            if container["name"] != "node" or trainer is None:
                continue
            for key in ("image", "command", "args"):
                if key in trainer:
                    container[key] = trainer[key]
            for each in trainer.get("env", []):
                upsert_env(container, **each)
            if "torch" not in policy:
                continue
            for key, value in (("PET_NNODES", str(nodes)),
                               ("PET_NPROC_PER_NODE", "1"),
                               ("PET_MASTER_ADDR", f"{name}-node-0-0.{name}"),
                               ("PET_MASTER_PORT", "29500")):
                upsert_env(container, key, value=value)
            upsert_env(container, "PET_NODE_RANK", valueFrom={"fieldRef": {
                "fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}})
    return {"metadata": {"name": name}, "spec": spec}


def tfjob_workloads(tfjob):
    name, replicas = tfjob["metadata"]["name"], tfjob["spec"]["tfReplicaSpecs"]
    cluster, workloads = {}, []
    for kind, spec in replicas.items():
        cluster[kind.lower()] = [
            f"{name}-{kind.lower()}-{index}.{NAMESPACE}.svc:{TF_PORT}"
            for index in range(spec.get("replicas", 1))]
    for kind, spec in replicas.items():
        workload = Workload(f"{name}-{kind.lower()}", spec, name, kind)
        for index in range(spec.get("replicas", 1)):
            pod = Pod(f"{workload.name}-{index}", workload, index,
                      spec["template"])
            config = {"cluster": cluster, "environment": "cloud",
                      "task": {"type": kind.lower(), "index": index}}
            if sum(map(len, cluster.values())) > 1:
                upsert_env(pod.container, "TF_CONFIG", value=json.dumps(config))
            pod.services = [pod.name]
            workload.pods.append(pod)
        workloads.append(workload)
    return workloads


def find(objects, kind, name):
    for each in objects:
        if each["kind"] == kind and each["metadata"]["name"] == name:
            return each
    return None


def workloads_of(objects):
    """All workloads, and the Services that controllers add."""
    workloads, services = [], []
    for each in objects:
        kind = each["kind"]
        if kind == "Job":
            workloads.append(job_workload(each))
        elif kind == "TFJob":
            workloads += tfjob_workloads(each)
        elif kind in ("JobSet", "TrainJob"):
            if kind == "TrainJob":
                reference = each["spec"]["runtimeRef"]
                each = trainjob_jobset(each, find(objects, reference["kind"],
                                                  reference["name"]))
            more, service = jobset_workloads(each)
            workloads += more
            services.append(service)
    return workloads, services


def selects(selector, labels):
    """Whether a Service's or a budget's selector selects a pod's labels."""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        selector = {"matchLabels": selector}
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions", []):
        assert each["operator"] == "In", each
        if labels.get(each["key"]) not in each["values"]:
            return False
    return True


def dns_names(pod, services):
    """By which other pods of the namespace find POD."""
    names = [pod.hostname]
    short = list(pod.services)
    for service in services:
        if service["metadata"]["name"] == pod.spec.get("subdomain") and \
                service["spec"].get("clusterIP") == "None" and \
                selects(service["spec"].get("selector", {}), pod.labels):
            short.append(f"{pod.hostname}.{pod.spec['subdomain']}")
    for name in short:
        names += [name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc",
                  f"{name}.{NAMESPACE}.svc.cluster.local"]
    return names


def expand(text, variables):
    """$(NAME) as the kubelet does: unknown ones stay, $$ is one $."""
    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)",
                  lambda m: "$" if m[0] == "$$" else
                  variables.get(m[1], m[0]), text)


def field(pod, path):
    quoted = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if quoted:
        return getattr(pod, quoted[1]).get(quoted[2], "")
    return {"metadata.name": pod.name, "metadata.namespace": NAMESPACE}[path]


def environment(pod, objects):
    variables = {}
    for source in pod.container.get("envFrom", []):
        variables.update(find(objects, "ConfigMap",
                              source["configMapRef"]["name"])["data"])
    for each in pod.container.get("env", []):
        if "valueFrom" in each:
            value = field(pod, each["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            value = expand(each.get("value", ""), variables)
        variables[each["name"]] = value
    return variables


def command(pod, objects):
    variables = environment(pod, objects)
    words = pod.container.get("command", []) + pod.container.get("args", [])
    return [expand(word, variables) for word in words]
