"""An engine for barrier, broadcast and allreduce: rank 0 gathers over sockets, computes, and answers."""

from __future__ import annotations

import pickle
import socket
import struct
import time

import numpy as np

import npucoll
from npucoll.engines.base import Capabilities

REDUCTIONS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


def _send(peer, message):
    data = pickle.dumps(message)
    peer.sendall(struct.pack("!Q", len(data)) + data)


def _receive(peer):
    (length,) = struct.unpack("!Q", _exactly(peer, 8))
    return pickle.loads(_exactly(peer, length))


def _exactly(peer, count):
    data = bytearray()
    while len(data) < count:
        part = peer.recv(count - len(data))
        if not part:
            raise npucoll.PeerLost("engine sockets: a rank closed its connection")
        data += part
    return bytes(data)


class _Done(npucoll.Work):
    def __init__(self, result):
        self._result = result

    def wait(self, timeout=None):
        return self._result

    def done(self):
        return True


class SocketEngine(npucoll.Engine):
    name = "sockets"
    capabilities = Capabilities(reproducible=True)

    def __init__(self, rank, size, peers):
        super().__init__(rank, size)
        self._peers = peers

    @classmethod
    def connect(cls, world):
        """Meet at an abstract socket named after the job."""
        identity = world.identity
        address = f"\0stranger-{identity.job}-{world.generation}"
        deadline = time.monotonic() + (world.connect_timeout or 60)
        peers = []
        if identity.rank == 0:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(address)
                server.listen(identity.size)
                server.settimeout(world.connect_timeout or 60)
                arrived = {}
                while len(arrived) < identity.size - 1:
                    peer, _ = server.accept()
                    arrived[_receive(peer)] = peer
                peers = [arrived[rank] for rank in sorted(arrived)]
        else:
            while True:
                peer = socket.socket(socket.AF_UNIX)
                try:
                    peer.connect(address)
                    break
                except OSError:
                    peer.close()
                    if time.monotonic() > deadline:
                        raise npucoll.CollectiveTimeout("engine sockets: rank 0 did not come") from None
                    time.sleep(0.01)
            _send(peer, identity.rank)
            peers = [peer]
        return cls(identity.rank, identity.size, peers)

    def run(self, call):
        if self._peers is None:
            raise npucoll.NotInitialized("engine sockets: closed")
        if call.kind not in ("barrier", "broadcast", "allreduce"):
            raise npucoll.UnsupportedError(f"engine sockets has no {call.kind}")
        mine = (call.describe(), call.inputs)
        if self.rank != 0:
            _send(self._peers[0], mine)
            answer = _receive(self._peers[0])
        else:
            answer = self._compute(call, [mine] + [_receive(peer) for peer in self._peers])
            for peer in self._peers:
                _send(peer, answer)
        if isinstance(answer, npucoll.MismatchError):
            raise answer
        if call.kind == "barrier":
            return []
        for place, result in enumerate(answer):
            if call.outputs is None:
                call.allocate(result.shape, result.dtype)
            call.outputs[place][...] = result
        return call.finish()

    @staticmethod
    def _compute(call, messages):
        said = [description for description, _ in messages]
        if len(set(said)) > 1:
            text = "; ".join(f"rank {rank}: {description}" for rank, description in enumerate(said))
            return npucoll.MismatchError(text)
        lists = [arrays for _, arrays in messages]
        if call.kind == "barrier":
            return []
        if call.kind == "broadcast":
            return lists[call.root]
        results = []
        for arrays in zip(*lists):
            total = REDUCTIONS[call.op].reduce([array * call.prescale for array in arrays])
            scale = call.postscale / len(lists) if call.op == "mean" else call.postscale
            results.append((total * scale).astype(arrays[0].dtype))
        return results

    def submit(self, call):
        return _Done(self.run(call))

    def group(self, ranks, name):
        raise npucoll.UnsupportedError("engine sockets has no groups")

    def close(self):
        peers, self._peers = self._peers, None
        for peer in peers or ():
            peer.close()
