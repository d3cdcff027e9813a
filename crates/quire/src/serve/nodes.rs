//! An engine on several machines: which workers run here, and how they find the others.
//!
//! Every node runs `quire serve` with the same flags but `--node-rank`. The first one has all processes; the others
//! have workers alone, which dial the first one's scheduler. Nodes may start in any order.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket},
    ops::Range,
};

use anyhow::{Context, bail};
use service_kit::Address;

use super::{
    flags::{Settings, Value},
    interfaces,
};

/// This node among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    rank: u32,
    count: u32,
    /// Where the first node's scheduler takes in workers of the others, as it was at the start.
    head: SocketAddr,
    /// The same as `host:port`, in the words of `--master-addr`: a name gets its address at each dial.
    dialed: String,
    /// Where other nodes reach this one.
    address: IpAddr,
    /// Ranks of the workers here.
    pub workers: Range<u32>,
}

impl Nodes {
    /// What the flags say of nodes; absent where there is one.
    pub fn read(settings: &Settings) -> anyhow::Result<Option<Self>> {
        let number = |name: &str, default: u32| settings.number(name).unwrap_or(default);
        let (count, rank, headless) = (number("nnodes", 1), number("node-rank", 0), is_on(settings, "headless"));
        if rank >= count {
            bail!("--node-rank {rank}: --nnodes {count} have the numbers 0 to {}", count - 1);
        }
        if headless && rank == 0 {
            bail!("--headless: node 0 is the one that serves HTTP; give this one another --node-rank");
        }
        if count == 1 {
            return Ok(None);
        }
        let (tp, pp) = (number("tensor-parallel-size", 1), number("pipeline-parallel-size", 1));
        let workers = workers(tp, pp, count, rank)?;
        let Some(host) = settings.text("master-addr") else {
            bail!("--nnodes {count} needs --master-addr, the first node's name or address");
        };
        let port = settings.number("master-port").unwrap_or(29_501);
        let found = (host, port).to_socket_addrs().with_context(|| format!("--master-addr {host}"))?.next();
        let head = found.with_context(|| format!("--master-addr {host} has no address"))?;
        let address = match (settings.text("node-ip").map(str::parse), settings.text("node-interface")) {
            (Some(Ok(address)), _) => address,
            (_, Some(names)) => of_interface(names, head)?,
            _ => towards(head).with_context(|| format!("no way to --master-addr {host}; see --node-ip"))?,
        };
        Ok(Some(Self { rank, count, head, dialed: dialed(host, port, head), address, workers }))
    }

    /// Whether this node has the processes other than workers.
    pub fn is_head(&self) -> bool {
        self.rank == 0
    }

    /// Where the first node's scheduler listens for workers of the others.
    pub fn listen(&self) -> Address {
        Address::Grpc(self.head.to_string())
    }

    /// What workers of other nodes dial. A name stays one, because a first node that comes back may have another
    /// address, as a pod has.
    pub fn dial(&self) -> Address {
        Address::Grpc(self.dialed.clone())
    }

    /// Where a process of this node listens for others, at a port that is free.
    pub fn any_port(&self) -> Address {
        Address::Grpc(SocketAddr::new(self.address, 0).to_string())
    }
}

/// `host:port`, of a name as it is, of an address as URIs write it.
fn dialed(host: &str, port: u16, head: SocketAddr) -> String {
    if host.parse::<IpAddr>().is_ok() { head.to_string() } else { format!("{host}:{port}") }
}

/// The workers of a node. Ranks of a stage share memory, so that they are on one node.
fn workers(tp: u32, pp: u32, nodes: u32, node: u32) -> anyhow::Result<Range<u32>> {
    if !pp.is_multiple_of(nodes) {
        bail!(
            "--nnodes {nodes}: {tp} workers of each of {pp} pipeline stages cannot be spread evenly over them, a stage \
             on one node; choose a --pipeline-parallel-size that is a multiple of {nodes}"
        );
    }
    let each = tp * pp / nodes;
    Ok(node * each..(node + 1) * each)
}

/// The address of the first interface of these names, of the kind that `head` has.
fn of_interface(names: &str, head: SocketAddr) -> anyhow::Result<IpAddr> {
    let interfaces = interfaces::all().context("cannot list this machine's interfaces")?;
    let found = interfaces::choose(names, head.is_ipv4(), &interfaces);
    found.with_context(|| {
        let present: Vec<_> = interfaces.iter().map(ToString::to_string).collect();
        let kind = if head.is_ipv4() { "IPv4" } else { "IPv6" };
        format!("--node-interface {names}: none of those has an {kind} address; there are {}", present.join(", "))
    })
}

/// This machine's address on the way to another one. Nothing is sent.
fn towards(head: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if head.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(head)?;
    Ok(socket.local_addr()?.ip())
}

fn is_on(settings: &Settings, name: &str) -> bool {
    matches!(settings.get(name), Some(Value::Bool(true)))
}

/// For people, of a node that has workers alone.
impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, count, dialed, workers, .. } = self;
        let last = workers.end - 1;
        write!(f, "node {rank} of {count}, with workers {} to {last} of the engine at {dialed}", workers.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::flags::parse;

    fn read(line: &str) -> anyhow::Result<Option<Nodes>> {
        Nodes::read(&parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap())
    }

    #[test]
    fn stages_are_spread_over_nodes() {
        let of = |rank| read(&format!("-tp 2 -pp 4 --nnodes 2 --master-addr 127.0.0.1 --node-rank {rank}"));
        let nodes = [of(0).unwrap().unwrap(), of(1).unwrap().unwrap()];
        assert_eq!(nodes.each_ref().map(|node| node.workers.clone()), [0..4, 4..8]);
        assert_eq!(nodes.each_ref().map(Nodes::is_head), [true, false]);
        assert_eq!(nodes[1].dial().to_string(), "grpc://127.0.0.1:29501");
        assert_eq!(nodes[1].any_port().to_string(), "grpc://127.0.0.1:0");
        assert_eq!(nodes[1].to_string(), "node 1 of 2, with workers 4 to 7 of the engine at 127.0.0.1:29501");
        assert_eq!(read("-pp 2").unwrap(), None);
    }

    #[test]
    fn a_name_is_dialed_as_it_is_and_listened_at_by_its_address() {
        let named = read("--nnodes 2 -pp 2 --master-addr localhost --master-port 9").unwrap().unwrap();
        assert_eq!(named.dial().to_string(), "grpc://localhost:9");
        assert_eq!(named.listen().to_string(), format!("grpc://{}", named.head));
        assert!(named.head.ip().is_loopback());
        assert_eq!(dialed("::1", 9, "[::1]:9".parse().unwrap()), "[::1]:9");
    }

    #[test]
    fn what_nodes_cannot_do_is_refused_by_name() {
        let refused = |line: &str| read(line).unwrap_err().to_string();
        assert!(refused("--nnodes 2 -pp 2").contains("--master-addr"));
        assert!(refused("--nnodes 2 -tp 2 --master-addr 127.0.0.1").contains("multiple of 2"));
        assert!(refused("--nnodes 2 -pp 2 --node-rank 2 --master-addr 127.0.0.1").contains("--node-rank 2"));
        assert!(refused("--headless").contains("node 0"));
    }

    #[test]
    fn a_node_has_the_address_of_its_interface() {
        let of = |flags: &str| read(&format!("--nnodes 2 -pp 2 --master-addr 127.0.0.1 {flags}"));
        let address = |flags: &str| of(flags).unwrap().unwrap().address.to_string();
        assert_eq!(address("--node-interface =lo"), "127.0.0.1");
        assert_eq!(address("--node-interface =lo --node-ip 127.0.0.9"), "127.0.0.9");
        let refused = of("--node-interface none").unwrap_err().to_string();
        assert!(refused.contains("--node-interface none") && refused.contains("lo (127.0.0.1)"), "{refused}");
    }
}
