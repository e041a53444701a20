//! Which addresses a webhook may reach: public ones, and those of networks the operator allowed.
//! Every address is checked where it is about to be connected to, so neither a spelling of it nor a
//! name that changes its mind gets around the check. A network that is allowed does not bring along what
//! hands out credentials to whoever asks: link-local addresses and metadata services are reached only
//! where one is named exactly.
//!
//! Ranges: IANA's IPv4 and IPv6 special-purpose address registries, and the metadata services of
//! clouds that lie in public ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;
use url::{Host, Url};

/// The addresses that one destination may reach.
#[derive(Clone, Debug)]
pub struct Guard {
    allow: Box<[IpNet]>,
    plain: bool,
}

/// An address that may not be reached, with the line that would allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    /// Private, loopback, link-local, documentation, multicast and the like.
    #[error(
        "address {0} is not public; to reach it, add allow_networks = [\"{net}\"] to the destination",
        net = IpNet::from(*.0)
    )]
    NotPublic(IpAddr),
    /// Plain `http` would carry events readable over a public network.
    #[error(
        "plain http to {0}; use https, or add allow_networks = [\"{net}\"] to the destination",
        net = IpNet::from(*.0)
    )]
    Plain(IpAddr),
}

impl Guard {
    /// The guard for a destination's URL and the networks allowed to it.
    pub fn new(url: &Url, allow: &[IpNet]) -> Self {
        Self {
            allow: allow.into(),
            plain: url.scheme() != "https",
        }
    }

    /// Whether this address may be connected to.
    ///
    /// # Errors
    /// Says why not, and how to allow it.
    pub fn check(&self, address: IpAddr) -> Result<(), Denied> {
        // ::ffff:127.0.0.1 connects to 127.0.0.1 and is judged as that.
        let address = address.to_canonical();
        let exactly_only = is_link_local_or_metadata(address);
        let allows = |net: &IpNet| {
            net.contains(&address) && (!exactly_only || net.prefix_len() == net.max_prefix_len())
        };
        if self.allow.iter().any(allows) {
            return Ok(());
        }
        if !is_public(address) {
            return Err(Denied::NotPublic(address));
        }
        if self.plain {
            return Err(Denied::Plain(address));
        }
        Ok(())
    }

    /// The same for a URL whose host is an address in any of its spellings; a name passes here and is
    /// checked when it is resolved.
    ///
    /// # Errors
    /// As `check`.
    pub fn check_literal(&self, url: &Url) -> Result<(), Denied> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check(address.into()),
            Some(Host::Ipv6(address)) => self.check(address.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }
}

/// Whether an address is globally routable and belongs to nobody's inside.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_UNICAST_V6.contains(&address)
                && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&address))
        }
    }
}

/// Whether a machine's own network or its cloud answers there. Also where the address is written into
/// one of IPv6 that a gateway translates.
fn is_link_local_or_metadata(address: IpAddr) -> bool {
    let address = match address {
        IpAddr::V6(address) => embedded_v4(address).map_or(IpAddr::V6(address), IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    EXACTLY_ONLY.iter().any(|net| net.contains(&address))
}

/// The IPv4 address that a NAT64 (`64:ff9b::/96`) or 6to4 (`2002::/16`) address stands for.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let ([0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..]) = address.segments()
    else {
        return None;
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

/// Addresses that are reached only where one is named exactly.
const EXACTLY_ONLY: [IpNet; 8] = [
    IpNet::V4(v4(169, 254, 0, 0, 16)), // link-local; holds most metadata services
    IpNet::V4(v4(100, 100, 100, 200, 32)), // metadata of one cloud
    IpNet::V4(v4(168, 63, 129, 16, 32)), // platform service of one cloud
    IpNet::V4(v4(192, 0, 0, 192, 32)), // metadata of one cloud
    IpNet::V6(v6(0xfe80, 0, 0, 10)),   // link-local
    IpNet::V6(v6_host(0xfd00, 0xec2, 0x254)), // metadata of one cloud
    IpNet::V6(v6_host(0xfd20, 0xce, 0x254)), // metadata of one cloud
    IpNet::V6(v6_host(0xfd00, 0xc1, 0xa9fe)), // metadata of one cloud
];

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const NOT_PUBLIC_V4: [Ipv4Net; 19] = [
    v4(0, 0, 0, 0, 8),        // this network
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // carrier-grade NAT; holds one cloud's metadata service
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // one cloud's platform service
    v4(169, 254, 0, 0, 16),   // link-local; holds most metadata services
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 31, 196, 0, 24),  // AS112
    v4(192, 52, 193, 0, 24),  // multicast tunnelling
    v4(192, 88, 99, 0, 24),   // 6to4 relays
    v4(192, 168, 0, 0, 16),   // private
    v4(192, 175, 48, 0, 24),  // AS112
    v4(198, 18, 0, 0, 15),    // benchmarking
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, broadcast
];

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

/// The one address `a:b::last`.
const fn v6_host(a: u16, b: u16, last: u16) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, last), 128)
}

/// Nothing outside is routed on the internet: loopback, unique local, link-local, multicast, NAT64.
const GLOBAL_UNICAST_V6: Ipv6Net = v6(0x2000, 0, 0, 3);

const NOT_PUBLIC_V6: [Ipv6Net; 5] = [
    v6(0x2001, 0, 0, 23),     // protocol assignments: Teredo, ORCHID, benchmarking
    v6(0x2001, 0xdb8, 0, 32), // documentation
    v6(0x2002, 0, 0, 16),     // 6to4: embeds an IPv4 address
    v6(0x2620, 0x4f, 0x8000, 48), // AS112
    v6(0x3fff, 0, 0, 20),     // documentation
];

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(url: &str, allow: &[&str]) -> (Url, Guard) {
        let url = Url::parse(url).unwrap();
        let allow: Vec<_> = allow.iter().map(|net| net.parse().unwrap()).collect();
        let guard = Guard::new(&url, &allow);
        (url, guard)
    }

    #[test]
    fn every_spelling_of_an_inside_address_is_denied() {
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "127.0.0.1.",
            "0",
            "0.0.0.0",
            "10.0.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "0xa9fea9fe",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.9",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.88.99.1",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[64:ff9b:1::1]",
            "[2002:7f00:1::]",
            "[2001:0:1::1]",
            "[fe80::1]",
            "[fc00::1]",
            "[fd00:ec2::254]",
            "[ff02::1]",
            "[2001:db8::1]",
            "[3fff::1]",
            "[100::1]",
            "[fec0::1]",
            "[0:0:0:0:0:ffff:a9fe:a9fe]",
            "１２７.０.０.１",
            "①②⑦.0.0.1",
            "127。0。0。1",
        ] {
            let (url, guard) = guard(&format!("https://{host}/"), &[]);
            let denied = guard.check_literal(&url);
            assert!(
                matches!(denied, Err(Denied::NotPublic(_))),
                "{host}: {denied:?}"
            );
        }
    }

    #[test]
    fn public_addresses_pass_by_https_and_plain_http_only_where_allowed() {
        for host in [
            "1.1.1.1",
            "[2606:4700:4700::1111]",
            "192.0.1.1",
            "100.128.0.1",
            "172.32.0.1",
        ] {
            let (url, guard_https) = guard(&format!("https://{host}/"), &[]);
            assert_eq!(guard_https.check_literal(&url), Ok(()), "{host}");
            let (url, guard_http) = guard(&format!("http://{host}/"), &[]);
            assert!(
                matches!(guard_http.check_literal(&url), Err(Denied::Plain(_))),
                "{host}"
            );
        }
        let (url, guard_http) = guard("http://127.0.0.1:9000/", &["127.0.0.0/8"]);
        assert_eq!(guard_http.check_literal(&url), Ok(()));
        let (url, guard_mapped) = guard("http://[::ffff:127.0.0.1]/", &["127.0.0.0/8"]);
        assert_eq!(guard_mapped.check_literal(&url), Ok(()));
        let (url, guard_other) = guard("http://10.0.0.1/", &["127.0.0.0/8"]);
        assert!(guard_other.check_literal(&url).is_err());
    }

    #[test]
    fn no_allowed_network_brings_along_link_local_or_metadata_addresses() {
        for (host, wider) in [
            ("169.254.169.254", "169.254.0.0/16"),
            ("169.254.169.254", "169.254.169.254/31"),
            ("169.254.1.1", "0.0.0.0/0"),
            ("100.100.100.200", "100.64.0.0/10"),
            ("168.63.129.16", "168.63.0.0/16"),
            ("192.0.0.192", "192.0.0.0/24"),
            ("[::ffff:169.254.169.254]", "0.0.0.0/0"),
            ("[fe80::1]", "fe80::/10"),
            ("[fd00:ec2::254]", "fd00::/8"),
            ("[fd20:ce::254]", "fc00::/7"),
            ("[fd00:c1::a9fe]", "::/0"),
            ("[64:ff9b::a9fe:a9fe]", "64:ff9b::/96"),
            ("[2002:a9fe:a9fe::1]", "2002::/16"),
        ] {
            let (url, wide) = guard(&format!("http://{host}/"), &[wider]);
            let denied = wide.check_literal(&url).unwrap_err();
            // What the denial says to add does allow it.
            let exactly = denied.to_string();
            let exactly = exactly.split('"').nth(1).unwrap();
            let (url, exact) = guard(&format!("http://{host}/"), &[exactly]);
            assert_eq!(exact.check_literal(&url), Ok(()), "{host} {exactly}");
        }
        // Others of the same network are what was allowed.
        let (url, wide) = guard("http://100.100.100.201/", &["100.64.0.0/10"]);
        assert_eq!(wide.check_literal(&url), Ok(()));
        let (url, wide) = guard("http://[64:ff9b::a00:1]/", &["64:ff9b::/96"]);
        assert_eq!(wide.check_literal(&url), Ok(()));
    }

    #[test]
    fn a_denial_names_the_line_that_would_allow_it() {
        let (url, guard) = guard("https://10.1.2.3/", &[]);
        let text = guard.check_literal(&url).unwrap_err().to_string();
        assert!(
            text.contains("allow_networks = [\"10.1.2.3/32\"]"),
            "{text}"
        );
    }
}
