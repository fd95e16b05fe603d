# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_horovod.py do."""

import json
import os
import signal
import time

import frameworks
import numpy as np
import processes
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import capstan.horovod.torch as hvd

PASSES = 2  # backward passes in a step


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(frameworks.INPUTS, 16),
        nn.Tanh(),
        nn.Linear(16, frameworks.CLASSES),
    )


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)


def dataset():
    x, y = (torch.tensor(part) for part in frameworks.samples())
    return TensorDataset(x, y)


def steps_of(net, optimizer, loader, first, last, begin=lambda step: None):
    """Trains, with clipping by the script."""
    for step, (x, y) in enumerate(loader):
        if not first <= step < last:
            continue
        begin(step)
        optimizer.zero_grad()
        for a, b in zip(x.chunk(PASSES), y.chunk(PASSES)):
            loss = nn.functional.cross_entropy(net(a), b)
            (loss / PASSES).backward()
        if isinstance(optimizer, hvd.Deferred):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), frameworks.CLIP)
        optimizer.step()


def report(net):
    found = nn.utils.parameters_to_vector(net.parameters()).tolist()
    print(json.dumps(found), flush=True)


def plain():
    net = network()
    loader = DataLoader(dataset(), frameworks.BATCH)
    steps_of(net, sgd(net), loader, 0, frameworks.STEPS)
    report(net)


def train(
    steps,
    save=None,
    resume=None,
    pause=None,
    holds=False,
    wrap_first=False,
    **keys,
):
    """WRAP_FIRST: rank 0 reads its weights after DistributedOptimizer. PAUSE: in
    that step rank 1 pauses, and, with HOLDS, in the next rank 0 until there is a
    file "go".
    """
    hvd.init(**keys)
    net = network(hvd.rank())
    optimizer = plain_optimizer = sgd(net)
    first = 0

    def wrap():
        return hvd.DistributedOptimizer(
            plain_optimizer,
            net.named_parameters(),
            backward_passes_per_step=PASSES,
            gradient_predivide_factor=float(hvd.size()),
        )

    if wrap_first:
        optimizer = wrap()
    if resume:
        first = frameworks.STEPS // 2
        if hvd.rank() == 0:
            saved = torch.load(resume)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if not wrap_first:
        optimizer = wrap()

    def begin(step):
        if hvd.rank() == 1 and step == pause:
            print("pauses", flush=True)
            signal.pause()
        holds_now = holds and hvd.rank() == 0 and step - 1 == pause
        while holds_now and not os.path.exists("go"):
            time.sleep(0.01)

    data = dataset()
    loader = DataLoader(
        data,
        frameworks.BATCH // hvd.size(),
        sampler=DistributedSampler(
            data, hvd.size(), hvd.rank(), shuffle=False
        ),
    )
    steps_of(net, optimizer, loader, first, steps, begin)
    if save and hvd.rank() == 0:
        states = {"net": net, "optimizer": optimizer}
        torch.save({k: v.state_dict() for k, v in states.items()}, save)
    report(net)


INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
OPS = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)


def numbers(dtype, rank):
    """Of RANK; sum and product of three ranks are within DTYPE."""
    kind = getattr(torch, dtype)
    random = np.random.default_rng(10 * rank + len(dtype))
    if dtype in INTEGERS:
        limits = torch.iinfo(kind)
        low, high = limits.min // 4, limits.max // 4
        values = random.integers(low, high, 99, np.int64, endpoint=True)
        values[:4] = low, high, high - rank, 20_000_001 % (high + 1)
        return torch.tensor(values).to(kind)
    values = random.standard_normal(99) * 10.0 ** random.integers(-3, 4, 99)
    values[0] = 1 / 3 + rank
    return torch.tensor(values).to(kind)


def small(dtype, rank):
    """Of RANK; the product of three ranks is within DTYPE."""
    return numbers(dtype, rank).remainder(5) + 1


def start(**keys):
    hvd.init(**keys)
    net = network()
    optimizer = hvd.DistributedOptimizer(sgd(net), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    return net, optimizer


class Lookahead(torch.optim.SGD):
    """By its name one that keeps a copy of the weights."""


def pushes(net, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        net(torch.ones(4, frameworks.INPUTS)).sum().backward()
        optimizer.step()


def _stale_wrap(**keys):
    hvd.DistributedOptimizer(sgd(network()), **keys)


def _stale_copier():
    hvd.DistributedOptimizer(Lookahead(network().parameters(), 0.1))


def _stale_load():
    net, optimizer = start()
    pushes(net, optimizer, 1)
    net.load_state_dict(network(1).state_dict())
    pushes(net, optimizer, 1)


def _stale_broadcast():
    """Rank 0 goes on with its own weights."""
    net, optimizer = start()
    for rank in range(hvd.size()):  # in turns: the last has what others have
        if rank == hvd.rank():
            pushes(net, optimizer, 1)
        hvd.barrier()
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    pushes(net, optimizer, 1)


STALE = {
    "sum": lambda: _stale_wrap(op=hvd.Sum),
    "passes": lambda: _stale_wrap(backward_passes_per_step=0),
    "copier": _stale_copier,
    "load": _stale_load,
    "broadcast": _stale_broadcast,
    "join": lambda: (start(), hvd.join()),
    "norm": lambda: hvd.SyncBatchNorm(2)(torch.ones(4, 2)),
}


def stale(what):
    """Prints what WHAT, which does not go with staleness, says."""
    hvd.init(strategy={"staleness": "inf"})
    tell(refusal(lambda: STALE[what]() and None))


def refusal(call, *arguments, **named):
    """The text of CALL's error."""
    try:
        return call(*arguments, **named)
    except hvd.ConfigError as error:
        return f"refused: {error}"


def tell(found):
    print(json.dumps(found), flush=True)


def left():
    """Prints what a sum without rank 1, which is killed, says."""
    start(timeouts={"peer": 2})
    open(f"started{hvd.rank()}", "w").close()
    if hvd.rank() == 1:
        while not all(os.path.exists(f"started{r}") for r in (0, 2)):
            time.sleep(0.01)  # they may end the same calls later
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.allreduce(torch.ones(1))
    except hvd.HorovodInternalError as error:
        tell([str(error), error.status])
        raise


def dtypes():
    """Prints the reductions of every type, and what does not fit."""
    hvd.init()
    found = {}
    for dtype in INTEGERS + FLOATS:
        mine = numbers(dtype, hvd.rank())
        apart = torch.stack([mine, mine], 1)[:, 0]  # every second place
        for op in OPS:
            is_product = op == hvd.Product
            given = small(dtype, hvd.rank()) if is_product else apart
            result = hvd.allreduce(given, op=op)
            assert result.dtype == mine.dtype and result.shape == mine.shape
            found[f"{dtype} {op}"] = result.tolist()
    half = hvd.allreduce(
        numbers("float32", hvd.rank()),
        op=hvd.Sum,
        prescale_factor=0.5,
        postscale_factor=3.0,
    )
    flags = torch.tensor([hvd.rank() == 0, True])
    flags = [hvd.allreduce(flags, op=op).tolist() for op in (hvd.Min, hvd.Max)]
    refused = [
        refusal(hvd.allreduce, torch.tensor([200], dtype=torch.uint8), op=hvd.Sum),
        refusal(hvd.allreduce, torch.tensor([2**62]), op=hvd.Sum),
        refusal(hvd.allreduce, torch.tensor([True]), op=hvd.Sum),
        refusal(hvd.allreduce, torch.tensor([1j]), op=hvd.Sum),
        refusal(hvd.allreduce, torch.tensor([1]), prescale_factor=0.5),
        refusal(hvd.allreduce, torch.ones(1), op=hvd.Adasum),
        refusal(hvd.allreduce, torch.ones(1), average=True, op=hvd.Sum),
    ]
    tell({"found": found, "half": half.tolist(), "flags": flags,
          "refused": refused})  # fmt: skip


def mine(rows=4):
    """This rank's numbers."""
    return torch.arange(2.0 * rows).reshape(rows, 2) + 10 * hvd.rank()


def build_set():
    found = hvd.ProcessSet([0])
    return [found.size(), found.included()]


def normalised():
    norm = hvd.SyncBatchNorm(2)
    return norm(mine()).tolist()


def stepped():
    net = nn.Linear(2, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 1.0), net.named_parameters()
    )
    hvd.broadcast_parameters([(k, v.fill_(hvd.rank())) for k, v in
                              net.state_dict().items()], 1)  # fmt: skip
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.zero_grad()
    net(mine()).mean().backward()
    optimizer.step()
    return net.weight.tolist()


def sent_state():
    """Rank 1's rate and momentum."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], 1.0 + hvd.rank(), momentum=0.5)
    weight.grad = torch.full((2,), 1.0 + hvd.rank())
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    buffer = optimizer.state[weight]["momentum_buffer"].tolist()
    return [optimizer.param_groups[0]["lr"], buffer]


def sent_parameters():
    own = {"a": torch.full((2,), hvd.rank()), "b": torch.ones(1) * hvd.rank()}
    hvd.broadcast_parameters(own, root_rank=1)
    return [own["a"].tolist(), own["b"].tolist()]


def in_place(call, **named):
    own = mine()
    result = call(own, **named)
    if isinstance(result, list):
        own, result = own[0], result[0]
    return [own.tolist(), result is own or torch.equal(own, result)]


def of(*calls):
    """The result of a handle that is polled first."""
    handle = calls[0](*calls[1:])
    assert hvd.poll(handle)
    found = hvd.synchronize(handle)
    if isinstance(found, (list, tuple)):
        return [part.tolist() for part in found]
    return found.to_dense().tolist() if found.is_sparse else found.tolist()


def of_group(found):
    return [part.tolist() for part in found]


def sparse():
    own = torch.sparse_coo_tensor([[hvd.rank(), 2]], [1.0, 3.0], (4,))
    return of(hvd.sparse_allreduce_async, own, "rows", hvd.Average)


# What is done with each name of Horovod, and printed.
USES = {
    "Adasum": lambda: refusal(hvd.allreduce, mine(), op=hvd.Adasum),
    "Average": lambda: hvd.allreduce(mine(), op=hvd.Average).tolist(),
    "Compression": lambda: hvd.allreduce(
        mine(), compression=hvd.Compression.fp16
    ).tolist(),
    "DistributedOptimizer": stepped,
    "HorovodInternalError": lambda: issubclass(
        hvd.ConfigError, hvd.HorovodInternalError
    ),
    "Max": lambda: hvd.allreduce(mine(), op=hvd.Max).tolist(),
    "Min": lambda: hvd.allreduce(mine(), op=hvd.Min).tolist(),
    "ProcessSet": build_set,
    "Product": lambda: hvd.allreduce(mine(), op=hvd.Product).tolist(),
    "Sum": lambda: hvd.allreduce(mine(), op=hvd.Sum).tolist(),
    "SyncBatchNorm": normalised,
    "add_process_set": lambda: refusal(hvd.add_process_set, [0]),
    "allgather": lambda: hvd.allgather(mine(hvd.rank() + 1)).tolist(),
    "allgather_async": lambda: of(hvd.allgather_async, mine(hvd.rank() + 1)),
    "allgather_object": lambda: hvd.allgather_object({"r": hvd.rank()}),
    "allreduce": lambda: hvd.allreduce(mine(), average=False).tolist(),
    "allreduce_": lambda: in_place(hvd.allreduce_),
    "allreduce_async": lambda: of(hvd.allreduce_async, mine()),
    "allreduce_async_": lambda: of(hvd.allreduce_async_, mine()),
    "alltoall": lambda: hvd.alltoall(mine()).tolist(),
    "alltoall_async": lambda: of(
        hvd.alltoall_async, mine(), [3 - hvd.rank(), 1 + hvd.rank()]
    ),
    "barrier": lambda: hvd.barrier(),
    "broadcast": lambda: hvd.broadcast(mine(), 1).tolist(),
    "broadcast_": lambda: in_place(hvd.broadcast_, root_rank=1),
    "broadcast_async": lambda: of(hvd.broadcast_async, mine(), 1),
    "broadcast_async_": lambda: of(hvd.broadcast_async_, mine(), 1),
    "broadcast_object": lambda: hvd.broadcast_object([hvd.rank()], 1),
    "broadcast_optimizer_state": sent_state,
    "broadcast_parameters": sent_parameters,
    "ccl_built": lambda: hvd.ccl_built(),
    "cross_rank": lambda: hvd.cross_rank(),
    "cross_size": lambda: hvd.cross_size(),
    "cuda_built": lambda: hvd.cuda_built(),
    "ddl_built": lambda: hvd.ddl_built(),
    "elastic": lambda: refusal(lambda: hvd.elastic.run(None)),
    "global_process_set": lambda: [
        hvd.global_process_set.size(),
        hvd.global_process_set.rank(),
        hvd.global_process_set.included(),
    ],
    "gloo_built": lambda: hvd.gloo_built(),
    "gloo_enabled": lambda: hvd.gloo_enabled(),
    "grouped_allgather": lambda: of_group(
        hvd.grouped_allgather([mine(1), mine(2)])
    ),
    "grouped_allgather_async": lambda: of(
        hvd.grouped_allgather_async, [mine(1), mine(2)]
    ),
    "grouped_allreduce": lambda: of_group(
        hvd.grouped_allreduce([mine(1), mine(2)], op=hvd.Sum)
    ),
    "grouped_allreduce_": lambda: in_place(
        lambda own: hvd.grouped_allreduce_([own[0], own[1]], op=hvd.Sum)
    ),
    "grouped_allreduce_async": lambda: of(
        hvd.grouped_allreduce_async, [mine(1), mine(2)]
    ),
    "grouped_allreduce_async_": lambda: of(
        hvd.grouped_allreduce_async_, [mine(1), mine(2)]
    ),
    "grouped_reducescatter": lambda: of_group(
        hvd.grouped_reducescatter([mine(2), mine(4)])
    ),
    "grouped_reducescatter_async": lambda: of(
        hvd.grouped_reducescatter_async, [mine(2), mine(4)]
    ),
    "init": lambda: hvd.init() is hvd.init(),
    "is_homogeneous": lambda: hvd.is_homogeneous(),
    "is_initialized": lambda: hvd.is_initialized(),
    "join": lambda: hvd.join(),
    "local_rank": lambda: hvd.local_rank(),
    "local_size": lambda: hvd.local_size(),
    "mpi_built": lambda: hvd.mpi_built(),
    "mpi_enabled": lambda: hvd.mpi_enabled(),
    "mpi_threads_supported": lambda: hvd.mpi_threads_supported(),
    "nccl_built": lambda: hvd.nccl_built(),
    "poll": lambda: refusal(hvd.poll, 5),
    "rank": lambda: hvd.rank(),
    "reducescatter": lambda: hvd.reducescatter(mine(3), op=hvd.Sum).tolist(),
    "reducescatter_async": lambda: of(hvd.reducescatter_async, mine()),
    "remove_process_set": lambda: hvd.remove_process_set(
        hvd.global_process_set
    ),
    "rocm_built": lambda: hvd.rocm_built(),
    "size": lambda: hvd.size(),
    "sparse_allreduce_async": sparse,
    "start_timeline": lambda: refusal(hvd.start_timeline, "timeline.json"),
    "stop_timeline": lambda: refusal(hvd.stop_timeline),
    "synchronize": lambda: refusal(hvd.synchronize, None),
    "shutdown": lambda: [hvd.shutdown(), hvd.is_initialized()],
}


def names():
    """Prints what the use of each name gives; the last is shutdown."""
    hvd.init()
    tell({name: use() for name, use in USES.items()})


def differ():
    """Prints what calls that differ between the ranks say."""
    hvd.init()
    one, rank = torch.ones(2), hvd.rank()
    calls = [
        lambda: hvd.allreduce(one, name=f"metric {rank}"),
        lambda: hvd.allreduce(one.reshape(1 + rank, 2 - rank)),
        lambda: hvd.allreduce(one if rank else one.int()),
        lambda: hvd.allreduce(one, op=[hvd.Sum, hvd.Max][rank]),
        lambda: hvd.allgather(torch.ones(1, 2 + rank)),
        lambda: hvd.broadcast(one, rank),
        lambda: hvd.allreduce(one) if rank else hvd.barrier(),
        lambda: hvd.broadcast_parameters({f"w{rank}": one}, 0),
        lambda: hvd.alltoall(torch.ones(2, 1 + rank)),
        # Alike on all ranks
        lambda: hvd.broadcast(one, 2),
        lambda: hvd.alltoall(torch.ones(3)),
        lambda: hvd.alltoall(one, splits=[2, 1]),
        lambda: hvd.allgather(torch.ones(())),
        lambda: hvd.allreduce(one, process_set=hvd.ProcessSet([0])),
        lambda: hvd.broadcast_parameters({"step": 1}, 0),
        lambda: hvd.allreduce(0.5),
        lambda: hvd.reducescatter([1.0]),
        lambda: hvd.alltoall(one.to_sparse()),
        lambda: hvd.init(comm=[0]),
        lambda: hvd.DistributedOptimizer(None, op=hvd.Sum),
        lambda: hvd.DistributedOptimizer(None, compression=hvd.Compression.fp16),
        lambda: hvd.allreduce(one, op=hvd.Sum).tolist(),
        lambda: hvd.allgather(torch.ones(rank, 2)).tolist(),
        lambda: hvd.alltoall(torch.ones(2), [0, 2])[1].tolist()[rank],
        lambda: hvd.broadcast(torch.tensor(5.5), 1).item(),
        lambda: list(hvd.allreduce(torch.ones(0, 3), op=hvd.Sum).shape),
    ]  # fmt: skip
    tell([refusal(call) for call in calls])


# Of tensors through which gradients go back: what each rank computes.
GRADIENTS = {
    "sum": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
    "mean": lambda x: hvd.allreduce(x),
    "allgather": lambda x: hvd.allgather(x[: 2 + hvd.rank()]),
    "broadcast": lambda x: hvd.broadcast(x, 1),
    "alltoall": lambda x: hvd.alltoall(x, [1, 3])[0],
    "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
}


def gradients():
    """Prints those of the sum of squares of what each returns."""
    hvd.init()
    found = {}
    for name, call in GRADIENTS.items():
        x = mine().requires_grad_()
        call(x).square().sum().backward()
        found[name] = x.grad.tolist()
    x = mine().requires_grad_()
    refused = refusal(
        lambda: hvd.allreduce(x, op=hvd.Max).sum().backward()
    )
    tell({"found": found, "refused": refused})


def norms(kind):
    """KIND: of hvd, or of torch in one process, which has all samples."""
    torch.manual_seed(3)
    x = torch.randn(8, 3, 4) * 5 + 1000
    weights = torch.randn(8, 3, 4)
    norm = nn.BatchNorm1d(3, momentum=0.3)
    if kind == "hvd":
        hvd.init()
        norm = hvd.SyncBatchNorm(3, momentum=0.3)
        cut = slice(0, 3) if hvd.rank() == 0 else slice(3, 8)  # uneven
        x, weights = x[cut], weights[cut]
    x.requires_grad_()
    y = norm(x)
    (y * weights).sum().backward()
    tell({
        "y": y.tolist(),
        "x": x.grad.tolist(),
        "weight": norm.weight.grad.tolist(),
        "running": [norm.running_mean.tolist(), norm.running_var.tolist()],
        "eval": norm.eval()(x).tolist(),
    })  # fmt: skip


def joined(batches):
    """Rank r trains BATCHES[r] batches, then joins; twice."""
    net, optimizer = start()
    losses = []
    x, y = dataset().tensors
    for _ in range(2):
        for step in range(batches[hvd.rank()]):
            rows = slice(*(4 * (2 * step + hvd.rank() + i) for i in (0, 1)))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        if hvd.rank() == 1 and batches[0] < batches[1]:
            losses.append(refusal(hvd.allreduce, torch.ones(1)))
        losses.append(hvd.join())
        mean = hvd.allreduce(torch.tensor([float(hvd.rank())]))
        losses.append(mean.item())
    weights = nn.utils.parameters_to_vector(net.parameters()).tolist()
    tell({"weights": weights, "told": losses})


def joined_sums():
    """Without an optimizer: rank r adds r + 1 times, then joins."""
    hvd.init()
    found = [
        hvd.allreduce(torch.ones(2, dtype=kind), op=hvd.Sum).tolist()
        for kind in [torch.float32, torch.int64, torch.float16][: hvd.rank() + 1]
    ]
    if hvd.rank() == hvd.size() - 1:
        found.append(refusal(hvd.allreduce, torch.ones(1), op=hvd.Max))
    try:
        found.append(hvd.join())
    except hvd.ConfigError as error:
        found.append(str(error))
        found.append(hvd.join())
    tell(found)


def collectives():
    """Prints what is averaged, added and sent, and the steps of the run."""
    hvd.init()
    net = nn.BatchNorm1d(3)
    net.running_mean += hvd.rank() + 1
    other = nn.BatchNorm1d(3)  # whose tensors have the same names
    nn.init.constant_(other.running_mean, hvd.rank() + 7)
    nn.init.constant_(other.weight, hvd.rank() + 7)
    for module in net, other:
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(net), net.named_parameters())
    found = [net.running_mean.tolist(), other.running_mean.tolist()]
    found.append(other.weight.tolist())
    ones = torch.full((2, 1 << 20), float(hvd.rank()))  # 8 MiB
    mean = hvd.allreduce(ones)
    total = hvd.allreduce(torch.tensor(hvd.rank() + 2), op=hvd.Sum)
    found += [list(mean.shape), mean.unique().tolist(), total.item()]
    found += [hvd.broadcast_object({"text": "x" * 99999 * (1 - hvd.rank())})]
    optimizer.zero_grad()
    net(torch.full((4, 3), float(hvd.rank()))).sum().backward()
    optimizer.step()
    found += [hvd.init().position.step, net.running_mean.tolist()]
    tell(found)


def unwrapped(by_hand):
    """Trains without DistributedOptimizer; BY_HAND: averages the gradients."""
    hvd.init()
    net = network(hvd.rank())
    optimizer = sgd(net)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.barrier()
    for _ in range(101):
        optimizer.zero_grad()
        net(torch.ones(1, frameworks.INPUTS)).sum().backward()
        if by_hand:
            hvd.grouped_allreduce_([p.grad for p in net.parameters()])
        optimizer.step()
    tell(hvd.size())


def early():
    """Collectives before the optimizer is wrapped, and after it."""
    hvd.init()
    rank = hvd.rank()
    hvd.barrier()
    rows = torch.arange(2.0 * (rank + 1)).reshape(-1, 2).bfloat16()
    found = [hvd.allgather(rows).tolist(), hvd.allgather_object({"r": rank})]
    weight = nn.Parameter(torch.full((3,), float(rank)))
    found += [hvd.broadcast(weight, 1).tolist(), weight.tolist()]
    hvd.broadcast_(weight, 1)
    found.append(weight.tolist())
    net = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(sgd(net), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    found.append(len(hvd.allgather(torch.zeros(1 << 19, 1))))
    tell(found)


if __name__ == "__main__":
    processes.main(globals())
