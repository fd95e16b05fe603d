#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a trace of Perfetto, by the field numbers of its documentation, and says
what is wrong with it as a timeline of Capstan.

Usage: cluster_timeline.py FILE FIRST:LAST KIND... [NAME=VALUE...]
       cluster_timeline.py FILE                       (prints the events as JSON)

KIND: ps, allreduce or tables, and what else is to be there: checkpoint, wait,
dropped, missing, empty, repeated (a reply). offset=NS: the clock of one process differs by so much,
and no process's by more than its bound. Knows nothing of Capstan's own code: the
format is decoded here a second time.
"""
import json
import sys

BEGIN, END, INSTANT = 1, 2, 3


def fields(data):
    """The fields of a message: (number, value), in order."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
        elif wire == 1:
            yield number, int.from_bytes(data[at:at + 8], "little")
            at += 8
        elif wire == 2:
            size = varint()
            yield number, data[at:at + size]
            at += size
        elif wire == 5:
            yield number, int.from_bytes(data[at:at + 4], "little")
            at += 4
        else:
            raise ValueError(f"wire type {wire}")


def message(data, repeated=()):
    """Last value by number; lists of those that are REPEATED."""
    found = {number: [] for number in repeated}
    for number, value in fields(data):
        if number in repeated:
            found[number].append(value)
        else:
            found[number] = value
    return found


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def arguments(items, names):
    found = {}
    for item in items:
        of = message(item)
        name = names[of[1]]
        found[name] = (of[3] if 3 in of else signed(of[4]) if 4 in of
                       else of[6].decode())
    return found


def read(path):
    """(processes by name, slices): a slice has process, track, name, begin, end,
    flows, ends (flows that end there) and its arguments."""
    tracks, names, argument_names = {}, {}, {}
    processes, slices, open_slices, last = {}, [], {}, {}
    data = open(path, "rb").read()
    for number, packet in fields(data):
        assert number == 1, f"field {number} in Trace"
        of = message(packet)
        assert of[10] == 1 and of[58] == 3, "the sequence, the monotonic clock"
        if 12 in of:
            interned = message(of[12], (2, 3))
            for table, entries in ((names, interned[2]), (argument_names, interned[3])):
                for entry in map(message, entries):
                    table[entry[1]] = entry[2].decode()
        if 60 in of:
            track = message(of[60])
            if 3 in track:
                process = message(track[3])
                tracks[track[1]] = (process[6].decode(), None)
                processes[process[6].decode()] = {"number": process[1]}
            else:
                tracks[track[1]] = (tracks[track[5]][0], track[2].decode())
        if 11 not in of:
            continue
        event = message(of[11], (4, 47, 48))
        assert event[11] in tracks, "an event before its track"
        process, track = tracks[event[11]]
        stack = open_slices.setdefault(event[11], [])
        assert last.get(event[11], 0) <= of[8], "events of a track out of order"
        last[event[11]] = of[8]
        if event[9] == INSTANT:
            processes[process].update(arguments(event[4], argument_names))
        elif event[9] == BEGIN:
            slices.append({"process": process, "track": track, "lane": event[11],
                           "name": names[event[10]], "begin": of[8], "end": None,
                           "flows": event[47], "ends": event[48],
                           **arguments(event[4], argument_names)})
            stack.append(slices[-1])
        else:
            stack.pop()["end"] = of[8]
            assert not stack or stack[-1]["end"] is None
    assert not any(open_slices.values()), "a slice without an end"
    for one in slices:
        assert one["end"] >= one["begin"]
    return processes, slices


def check_flows(slices, allowed):
    """Every push of a block goes to one update, one reply of a ps, and arrives. After
    a second without an answer the ps is asked again, and may reply again: the number
    of such replies. Once in a run it is asked before, for all that is under way: when
    the link to it goes over to shared memory."""
    found = {}
    for one in slices:
        for flow in one["flows"] + one["ends"]:
            found.setdefault(flow, []).append(one)
    assert found, "no flows"
    repeated = 0
    early = {}  # of a process and a ps: when a push left, when it was answered again
    for flow, chain in found.items():
        chain.sort(key=lambda one: one["end"])
        at = [(one["name"], one["process"].startswith("ps")) for one in chain]
        order = [("push", False), ("apply", True), ("reply", True), ("reply", False)]
        repeats = (len(at) - len(order)) // 2
        assert sorted(at) == sorted(order + repeats * order[2:]), at
        arrived = [one for one, place in zip(chain, at) if place == order[3]]
        pushed = chain[at.index(order[0])]
        for one in arrived[1:]:
            if one["end"] - pushed["end"] < 1e9:
                link = pushed["process"], chain[at.index(order[2])]["process"]
                early.setdefault(link, []).append((pushed["end"], one["end"]))
        repeated += repeats
        assert all(flow in one["ends"] for one in arrived), "a flow that does not end"
        chain = [chain[at.index(place)] for place in order]
        assert chain[0]["process"] == chain[3]["process"], chain
        assert chain[1]["process"] == chain[2]["process"], chain
        assert len({one["step"] for one in chain}) == 1, chain
        for before, after in zip(chain, chain[1:]):
            assert before["begin"] <= after["begin"] + allowed, (before, after)
        assert chain[1]["end"] <= chain[2]["end"] + allowed, chain
    for link, times in early.items():
        left, answered = zip(*times)
        assert max(left) < min(answered), (link, times)
    pushes = [one for one in slices if one["name"] == "push"]
    blocks = sum(one.get("blocks", 1) for one in pushes)
    assert blocks == len(found), (blocks, len(found))
    return repeated


def check_queue(slices):
    """A gradient waits from its arrival to its update."""
    applied = {}
    for one in slices:
        if one["name"] == "apply":
            applied.setdefault((one["process"], one["block"]), set()).add(one["begin"])
    queued = [one for one in slices if one["name"] == "queue"]
    assert queued, "nothing waits"
    shared = [one for one in slices if "blocks" in one and one["track"] == "update"]
    assert not shared, shared  # an update is of one block, for several ranks
    for one in queued:
        assert one["end"] in applied[one["process"], one["block"]], one


def covered(intervals):
    """Length of the union."""
    total, end = 0, None
    for left, right in sorted(intervals):
        if end is None or left > end:
            total, end = total + right - left, right
        elif right > end:
            total, end = total + right - end, right
    return total


def check_steps(slices, first, last, names):
    """A trainer's steps are all there, and input, forward, backward and wait nearly
    fill one, as a busy machine may stand still between two slices of the others."""
    for process in {one["process"] for one in slices if one["name"] == "forward"}:
        own = [one for one in slices
               if one["process"] == process and one["name"] in names]
        assert len({one["lane"] for one in own}) == 1, "passes and waits nest"
        begins = {one["step"]: one["begin"] for one in reversed(own)
                  if one["name"] == "forward"}
        assert sorted(begins) == list(range(first, last + 1)), sorted(begins)
        parts = []
        for step in range(first, last):
            left, right = begins[step], begins[step + 1]
            inside = covered([(max(one["begin"], left), min(one["end"], right))
                              for one in own
                              if one["end"] > left and one["begin"] < right])
            parts.append(inside / (right - left))
        assert not parts or max(parts) >= 0.8, (process, parts)
        print(process, "covers", [round(part, 2) for part in parts])


def main(path, steps, *wanted):
    first, last = map(int, steps.split(":"))
    values = dict(word.split("=") for word in wanted if "=" in word)
    kinds = [word for word in wanted if "=" not in word]
    processes, slices = read(path)
    names = {one["name"] for one in slices}
    assert len({one["number"] for one in processes.values()}) == len(processes)
    for name, process in processes.items():
        assert process["first_step"] == first and process["last_step"] == last
        assert process["host"] and "clock_bound_ns" in process or "missing" in process
        print(name, process)
    outside = [one for one in slices if not first <= one["step"] <= last]
    assert not outside, outside
    print(len(slices), "slices:", {name: sum(one["name"] == name for one in slices)
                                   for name in sorted(names)})
    if "empty" in kinds:
        assert not slices, names
        return
    offset = int(values.get("offset", 0))
    bound = max(process.get("clock_bound_ns", 0) for process in processes.values())
    shifted = [process for process in processes.values()
               if process.get("clock_offset_ns", 0)]
    assert len(shifted) == (offset != 0), shifted
    for process in shifted:
        wrong = abs(process["clock_offset_ns"] - offset)
        assert wrong <= process["clock_bound_ns"] < 1e9, (process, wrong)
    lost = any(process["dropped"] for process in processes.values())
    assert lost == ("dropped" in kinds), lost
    absent = any("missing" in process for process in processes.values())
    assert absent == ("missing" in kinds), absent
    for name in ("checkpoint", "wait", "sum", "lookup", "rows"):
        assert name not in kinds or name in names, name
    if lost or absent:
        return
    if "ps" in kinds:
        repeated = check_flows(slices, 2 * bound if offset else 0)
        assert repeated or "repeated" not in kinds, "no reply came twice"
        check_queue(slices)
    if "allreduce" in kinds:
        assert {"sum", "apply"} <= names and "push" not in names, names
    if "caller" not in kinds:
        check_steps(slices, first, last, {"input", "forward", "backward", "wait"})


if __name__ == "__main__":
    if len(sys.argv) == 2:
        json.dump(dict(zip(("processes", "slices"), read(sys.argv[1]))), sys.stdout)
    else:
        main(*sys.argv[1:])
