"""How the network of a replicate is connected, as its training recorded it."""

from data_prep import files
from data_prep.errors import InputError
from lottery.pruning.connectivity import Topology
from lottery.rundir.names import Replicate


def topology_of(replicate: Replicate) -> Topology | None:
    """None if the training could not tell (a user's subclassed model). Raises InputError if it could and the file is
    missing."""
    if replicate.topology.exists():
        return Topology.from_json(files.read_json(replicate.topology))
    result = replicate.dense.read_result()
    if result and replicate.name_of(replicate.topology) in result.outputs:
        raise InputError(f"{replicate.topology} is missing: `imp train` adds it")
    return None


def layers_of(replicate: Replicate) -> list[str]:
    """The names of a network's layers in its order, as far as its topology is known."""
    topology = topology_of(replicate)
    return topology.layers if topology else []
