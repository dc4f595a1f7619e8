"""The peers that there are."""

from __future__ import annotations

from typing import Dict

from peers.adapter import Peer
from peers.gloo import Gloo
from peers.horovod import Horovod
from peers.mpi import IntelMpi, Mpich, OpenMpi

__all__ = ["PEERS"]

#: In the order in which they are measured and shown.
PEERS: Dict[str, Peer] = {peer.name: peer for peer in (Mpich(), OpenMpi(), IntelMpi(), Gloo(), Horovod())}
