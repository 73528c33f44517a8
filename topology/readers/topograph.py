"""Reads topograph's model YAML: `switches` under switches with region and zone labels, `blocks` of hosts under a leaf.

Source: tests/models of NVIDIA/topograph. An accelerator domain is an NVLink domain; where a block also names a
sub-domain, the narrower one counts, since only the narrower one is certain to share its NVLinks.
"""

from __future__ import annotations

from typing import Final

from topology.graph.network_tree import NetworkTree
from topology.graph.parts import Topology, TopologyBuilder, bad, check_name
from topology.labels import REGION, ZONE
from topology.readers.documents import DocumentValue, yaml_documents
from topology.readers.hostlist import MAX_NAMES, unfold

SOURCE: Final = "topograph model"
_DOMAIN, _SUB_DOMAIN = "/domain", "/sub-domain"


def read(text: str) -> Topology:
    """Hosts, switches and NVLink domains. Raises BadInput with line and reason."""
    documents = yaml_documents(text)
    if len(documents) != 1:
        raise bad(1, "number of documents", len(documents), "a model is one document")
    return read_document(documents[0])


def read_document(model: DocumentValue) -> Topology:
    """The same, from a value."""
    for key, value in model.mapping("model").items():
        if key not in ("switches", "blocks"):
            raise bad(value.line, "key of the model", key, "it is switches or blocks")
    tree = NetworkTree(TopologyBuilder(SOURCE))
    switches = model.get("switches")
    for name, value in switches.mapping("switches").items() if switches else ():
        _switch(name, value, tree)
    blocks = model.get("blocks")
    left = MAX_NAMES
    for block in blocks.items("blocks") if blocks else ():
        left -= _block(block, tree, left)
    if not tree.hosts:
        raise bad(model.line, "number of hosts", 0, "blocks with nodes are needed")
    return tree.finish()


def _switch(name: str, value: DocumentValue, tree: NetworkTree) -> None:
    check_name(name, value.line)
    node = tree.switch(name, value.line)
    if value.data is None:
        return
    for key, given in value.mapping(f"switch {name}").items():
        if key == "switches":
            for child in given.items(f"switches of {name}") if given.data is not None else ():
                below = child.text(f"switch under {name}")
                check_name(below, child.line)
                tree.put(below, tree.switch(below, child.line), name, child.line)
        elif key == "labels":
            labels = given.mapping(f"labels of {name}") if given.data is not None else {}
            node.zone = labels[ZONE].text("zone") if ZONE in labels else ""
            node.region = labels[REGION].text("region") if REGION in labels else ""
        elif key != "annotations":
            raise bad(given.line, f"key of switch {name}", key, "it is labels, annotations or switches")


def _block(block: DocumentValue, tree: NetworkTree, left: int) -> int:
    for key, value in block.mapping("block").items():
        if key not in ("switch", "nodes", "annotations", "labels"):
            raise bad(value.line, "key of a block", key, "it is switch, nodes, labels or annotations")
    leaf = block.get("switch")
    where = leaf.text("switch of a block") if leaf else ""
    domain = _domain(block, tree)
    count = 0
    for entry in block.need("nodes", "block").items("nodes of a block"):
        for host in unfold(entry.text("node of a block"), entry.line, left - count):
            node = tree.host(host, entry.line)
            if node.inside or node.domain:
                raise bad(entry.line, "host", host, "it is in two blocks; a host stands in one")
            node.domain = domain
            if where and leaf is not None:
                check_name(where, leaf.line)
                tree.switch(where, leaf.line)
                tree.put(host, node, where, entry.line)
            count += 1
    return count


def _domain(block: DocumentValue, tree: NetworkTree) -> str:
    annotations = block.get("annotations")
    wide = narrow = ""
    for key, value in annotations.mapping("annotations of a block").items() if annotations else ():
        if key.endswith((_DOMAIN, _SUB_DOMAIN)):
            name = value.text(key)
            check_name(name, value.line)
            wide, narrow = (wide, name) if key.endswith(_SUB_DOMAIN) else (name, narrow)
    if wide and narrow and wide != narrow:
        tree.build.warn("blocks name an accelerator domain and a sub-domain; the sub-domain is taken as NVLink domain")
    return narrow or wide
