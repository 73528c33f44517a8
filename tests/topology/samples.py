"""Small topologies of our own, one a format: what the readers' tests and the fuzzer start from."""

from __future__ import annotations

from typing import Final

TOPO_MATRIX: Final = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPIX\t0-7\t0\t\tN/A
GPU1\tNV4\t X \tSYS\t8-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_7
"""

# Two GPUs and a NIC under one bridge, a third GPU on the other processor; NVLinks through one switch, and a bridge.
NCCL_SYSTEM: Final = """\
<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400" link_width="16">
      <pci busid="0000:10:00.0" class="0x030200">
        <gpu dev="0" sm="90" rank="0">
          <nvlink target="0000:c0:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:20:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:11:00.0" class="0x030200">
        <gpu dev="1" sm="90" rank="1">
          <nvlink target="0000:c0:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" port="1"/></nic></pci>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:20:00.0" class="0x030200">
      <gpu dev="2"><nvlink target="0000:10:00.0" count="1" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"""

NCCL_GRAPH: Final = """\
<graphs version="1">
  <graph id="0" pattern="4" typeintra="PHB" typeinter="PIX">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/></channel>
  </graph>
  <graph id="1" pattern="1" typeintra="PIX" typeinter="PIX">
    <channel><gpu dev="1"/><gpu dev="0"/></channel>
  </graph>
</graphs>
"""

IBNETDISCOVER: Final = """\
# Topology file
vendid=0x2c9
switchguid=0xa1(a1)
Switch\t3 "S-a1"\t\t# "MF0;leaf1:MQM/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-b1"[1](b1) \t\t# "n1 mlx5_0" lid 2 4xNDR
[2]\t"S-a2"[1]\t\t# "MF0;spine1:MQM/U1" lid 3 4xNDR
[3]\t"S-a2"[2]\t\t# "MF0;spine1:MQM/U1" lid 3 4xNDR

Switch\t3 "S-a2"\t\t# "MF0;spine1:MQM/U1" base port 0 lid 3 lmc 0
[1]\t"S-a1"[2]\t\t# "MF0;leaf1:MQM/U1" lid 1 4xNDR
[2]\t"S-a1"[3]\t\t# "MF0;leaf1:MQM/U1" lid 1 4xNDR

Ca\t1 "H-b1"\t\t# "n1 mlx5_0"
[1](b1) \t"S-a1"[1]\t\t# lid 2 lmc 0 "MF0;leaf1:MQM/U1" lid 1 4xNDR
"""

SLURM: Final = """\
# a tree and blocks
SwitchName=spine Switches=leaf[1-2] LinkSpeed=100
SwitchName=leaf1 Nodes=n[01-03]
SwitchName=leaf2 \\
  Nodes=n04,m[1,3]
BlockName=b1 Nodes=n[01-03]
BlockSizes=2,4
"""

TOPOGRAPH: Final = """\
switches:
  core:
    labels: {topology.kubernetes.io/region: r1}
    switches: [sw1, sw2]
  sw1:
    labels: {topology.kubernetes.io/zone: z1}
blocks:
- switch: sw1
  nodes: ["n[1-2]", n9]
  annotations: {accelerator.example/domain: nvl1}
- switch: sw2
  nodes: [n3]
"""

NETQ: Final = """\
[{"links": [{"id": "l1", "src": "1", "target": "2", "size": 2, "compounded_links": [{"id": "a"}, {"id": "b"}]},
            {"id": "l2", "src": "2", "target": "3"}],
  "nodes": [{"name": "tier-1", "compounded_nodes": [
               {"id": "2", "name": "leaf1", "device_type": "switch", "tier": 1},
               {"id": "3", "name": "spine1", "device_type": "switch", "tier": 2}]},
            {"name": "hosts", "compounded_nodes": [
               {"id": "1", "name": "n1", "device_type": "discovered_via_lldp", "tier": -1}]}]}]
"""

NETQ_COMPUTE: Final = """\
[{"Name": "n1", "DomainUUID": "d-1", "GpuIDList": ["g1", "g2"], "Health": "HEALTHY"},
 {"Name": "n2", "DomainUUID": "d-1", "GpuIDList": ["g3"], "Health": "DEGRADED"}]
"""

LABELS: Final = """\
kubernetes.io/hostname=n1
nvidia.com/gpu.count=2
nvidia.com/gpu.clique=6f4a.32766
network.topology.nvidia.com/leaf=leaf1
network.topology.nvidia.com/spine=spine1
topology.kubernetes.io/zone=z1
"""

NODES: Final = """\
apiVersion: v1
kind: List
items:
- kind: Node
  metadata:
    name: n1
    labels: {topology.k8s.aws/network-node-layer-3: nn-3, topology.k8s.aws/network-node-layer-2: nn-2}
- kind: Node
  metadata:
    name: n2
    labels: {topology.k8s.aws/network-node-layer-3: nn-4, topology.k8s.aws/network-node-layer-2: nn-2}
"""

HYPERNODES: Final = """\
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s0}
spec:
  tier: 1
  members:
  - {type: Node, selector: {exactMatch: {name: n1}}}
  - {type: Node, selector: {regexMatch: {pattern: "n[2-9]"}}}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s1}
spec:
  tier: 2
  members: [{type: HyperNode, selector: {exactMatch: {name: s0}}}]
"""

ALL: Final = {
    "topo-matrix": TOPO_MATRIX,
    "nccl-system": NCCL_SYSTEM,
    "nccl-graph": NCCL_GRAPH,
    "ibnetdiscover": IBNETDISCOVER,
    "slurm": SLURM,
    "topograph": TOPOGRAPH,
    "netq": NETQ,
    "netq-compute": NETQ_COMPUTE,
    "labels": LABELS,
    "nodes": NODES,
    "hypernodes": HYPERNODES,
}

MEASURED: Final = {
    "sendrecv": """\
# nThread 1 nGpus 1 warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 77 on      n1 device  0 [0x31] NVIDIA A40
#  Rank  1 Group  0 Pid 78 on      n2 device  3 [0x31] NVIDIA A40
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float    none      -1    31.00    0.03    0.03      0    30.00    0.03    0.03    N/A
       65536         16384     float    none      -1    42.50    1.54    1.54      0    41.00    1.60    1.60    N/A
""",
    "ib_write_lat": """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    99% percentile[usec]
 65536       1000          9.10           30.00        9.50            9.60        11.40
""",
    "osu": """\
# two nodes
# OSU MPI-CUDA Latency Test v7.5
# Size       Avg Latency(us)  P50 Tail Lat(us)  P99 Tail Lat(us)
8  2.50  2.40  4.10
# OSU MPI-CUDA Bandwidth Test v7.5
# Size      Bandwidth (MB/s)
1048576  23000.5
""",
    "p2p": """\
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.61  21.89
     1  11.68   2.72
""",
    "table": """\
time_stats.send_recv.median,num_workers,size,collective,devices_per_node
0.017,2,2048,send_recv,1
0.019,2,10240,send_recv,1
""",
}
"""What measuring tools print, by a name of the file that says which."""
