"""The fakes of one rank of a dry run: GPUs, tensors without memory, peers that answer, saved files.

All of it runs inside the rank's own process, around the user's unchanged script. Choosing ranks, replaying them
together and the verdict live in ``simcoll.dryrun``.

``main`` sets the variables that say which rank it is: those of torchrun, and of Slurm and MPI where they are in use;
``fake_distributed`` puts fake groups and stores in the place of all that the script asks for, and runs scripts that
start their ranks themselves; ``private_mounts`` keeps what they write, ``shared_files`` shows it to other ranks.
``fake_cuda`` answers for ``torch.cuda``; two modes
of torch keep all memory on the CPU and carry *marks* through operators: the GPU that a tensor claims to be on, and
whether its values depend on data of other ranks. A fake group gives the table's result for a rank whose peers all have
its inputs.

For ``simcoll estimate script.py`` another mode counts FLOPs and bytes of each operator (``flop_counter``), with streams
and events that track their dependencies (``fake_cuda``); both go into the record in the order in which a GPU's default
stream would run them. Ranks that did not run get the program of one with the same place in its groups, and the roofline
of :mod:`simcoll.pricing.roofline` turns work into seconds of the topology's GPU.
"""
