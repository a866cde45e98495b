"""Nodes of one job that share no folder: node 0 learns of the others' ranks, and makes one report of all records.

The launchers meet in the rendezvous store that torch's agents made (:mod:`~simcoll.launch.nodes.meeting`): node 0's
puts down a port and a secret, the others' read them. Nothing else goes through the store. The processes of
``simcoll run`` then talk over a TCP connection from each node to node 0 (:mod:`~simcoll.launch.nodes.wire`), which
node 0 drives:

* each second it asks a node for a summary of its ranks: whether they moved, how their processes ended, their last
  call;
* where no node moves any more, it asks for the stacks and the records of all, and judges them as those of one folder;
* when a node's job has ended, it takes that node's records (:mod:`~simcoll.launch.nodes.files`): in chunks,
  compressed, each once, so that a connection that broke is gone on with;
* it tells nodes when to end the job, and in the end what the report says.

:mod:`~simcoll.launch.nodes.head` is node 0's part, :mod:`~simcoll.launch.nodes.member` that of every other node;
:mod:`~simcoll.launch.nodes.exchange` is what the command and its monitor see of both. A node whose folder is that of
node 0 takes no part: its files are there already.

Peers prove that they know the secret. Still their words are input: JSON with checked types, bounded lengths, bounded
decompression, and file names that are made here, of numbers.
"""
