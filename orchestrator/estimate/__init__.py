"""What a job needs and moves, before it is queued: memory, traffic, time, advice. Without torch.

setting.py   what of a job matters for it, and what a comparison varies
outline.py   the model: its parameters by unit (gpt.py: the bundled one; inspected.py: a user's)
figures.py   what comes out: memory, transfers, pace
held.py      bytes that a rank holds between steps, exactly
memory.py    bytes that a rank holds at its peak: a step walked through (ledger.py), with what a
             block leaves (activations.py) and what is whole for a while (engines.py: DDP;
             sharded.py: FSDP2; flat.py: FSDP1); reference.py: published accounts
traffic.py   bytes that a rank sends in a step, inside and between nodes
hardware.py  the card and the links, from the profile and the tables of orchestrator/data
pace.py      time of a step, and where it goes
advice.py    all strategies compared: the fastest that fits, and why
"""
