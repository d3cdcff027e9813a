//! This machine's network interfaces, and which of them its user means.

use std::{fmt, io, net::IpAddr};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
}

/// All addresses of all interfaces, in the kernel's order.
///
/// # Errors
/// When the kernel does not list them.
pub fn all() -> io::Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs()?;
    Ok(found.into_iter().map(|found| Interface { address: found.ip(), name: found.name }).collect())
}

/// The first address of an interface that `names` mean, IPv4 or IPv6. Names are separated by commas, as in
/// `NCCL_SOCKET_IFNAME`: beginnings of names (`eth`), after `=` whole names (`=eth0,eth1`), after `^` beginnings of
/// those that are not meant (`^docker,lo`), after `^=` whole ones. What is named first is chosen first.
pub fn choose(names: &str, is_ipv4: bool, interfaces: &[Interface]) -> Option<IpAddr> {
    let (is_excluded, names) = names.strip_prefix('^').map_or((false, names), |rest| (true, rest));
    let (is_exact, names) = names.strip_prefix('=').map_or((false, names), |rest| (true, rest));
    let means = |name: &str, interface: &Interface| {
        if is_exact { interface.name == name } else { interface.name.starts_with(name) }
    };
    let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    let fits = |interface: &&Interface| interface.address.is_ipv4() == is_ipv4;
    let fitting = interfaces.iter().filter(fits);
    let chosen = if is_excluded {
        // Another machine does not reach a loopback address.
        let is_open = |interface: &&Interface| !interface.address.is_loopback();
        fitting.filter(is_open).find(|interface| !names.iter().any(|name| means(name, interface)))
    } else {
        names.iter().find_map(|name| fitting.clone().find(|interface| means(name, interface)))
    };
    chosen.map(|interface| interface.address)
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &str, is_ipv4: bool, expected: Option<&str>) {
        let interfaces = [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth10", "10.0.0.10"),
            ("eth1", "10.0.0.1"),
            ("eth1", "fe80::1"),
            ("ib0", "10.1.0.1"),
        ];
        let interface = |(name, address): (&str, &str)| Interface {
            name: name.to_owned(),
            address: address.parse().expect("an address"),
        };
        let found = choose(names, is_ipv4, &interfaces.map(interface));
        assert_eq!(found.map(|address| address.to_string()).as_deref(), expected, "{names}");
    }

    #[test]
    fn names_mean_what_they_mean_to_nccl() {
        check("eth", true, Some("10.0.0.10"));
        check("eth1", true, Some("10.0.0.10"));
        check("=eth1", true, Some("10.0.0.1"));
        check("=eth1", false, Some("fe80::1"));
        check("ib,eth", true, Some("10.1.0.1"));
        check("=ib1,ib0", true, Some("10.1.0.1"));
        check("^docker,eth", true, Some("10.1.0.1"));
        check("^=docker0,eth1", true, Some("10.0.0.10"));
        check("lo", true, Some("127.0.0.1"));
        for none in ["=eth", "wlan", "", "^docker,eth,ib"] {
            check(none, true, None);
        }
    }
}
