//! Broker addresses (C6).

use std::fmt;

use crate::TicketError;

/// `host:port` or `[v6]:port`, split and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addr {
    /// A name, an IPv4 address, or an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Addr {
    pub(crate) fn parse(text: &str) -> Result<Self, TicketError> {
        let bad = |why: &str| {
            TicketError::invalid(
                "addrs",
                format!("{text:?} {why}; write host:port or [v6]:port, for example 127.0.0.1:5225"),
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| bad("has no port"))?;
        let port: u16 = match port.parse() {
            Ok(port) if port > 0 && !text.ends_with(&format!("+{port}")) => port,
            _ => return Err(bad("has no port from 1 to 65535")),
        };
        let host = match host.strip_prefix('[') {
            Some(rest) => {
                let v6 = rest
                    .strip_suffix(']')
                    .ok_or_else(|| bad("lacks a bracket"))?;
                let is_v6 = v6.parse::<std::net::Ipv6Addr>().is_ok();
                if !is_v6 {
                    return Err(bad("has no IPv6 address between its brackets"));
                }
                v6
            }
            None if host.contains([':', ']']) => return Err(bad("needs brackets around IPv6")),
            None => host,
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/@,".contains(c)) {
            return Err(bad("has no host name"));
        }
        Ok(Addr {
            host: host.into(),
            port,
        })
    }

    /// One address is a single broker, two to five are a cluster's nodes in slot order.
    pub(crate) fn parse_all(texts: &[String]) -> Result<Vec<Self>, TicketError> {
        if !(1..=5).contains(&texts.len()) {
            return Err(TicketError::invalid(
                "addrs",
                format!(
                    "{} addresses; give 1 for a single broker, 2 to 5 for a cluster",
                    texts.len()
                ),
            ));
        }
        texts.iter().map(|text| Self::parse(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c6_addresses_are_host_port_or_bracketed_v6() {
        for (text, host, port) in [
            ("localhost:5225", "localhost", 5225),
            ("127.0.0.1:1", "127.0.0.1", 1),
            ("[::1]:65535", "::1", 65535),
        ] {
            let addr = Addr::parse(text).unwrap();
            assert_eq!((addr.host.as_str(), addr.port), (host, port));
            assert_eq!(addr.to_string(), text);
        }
        for bad in [
            "",
            "localhost",
            "localhost:",
            ":5225",
            "localhost:0",
            "localhost:65536",
            "::1:5225",
            "[::1]",
            "[::1:5225",
            "[localhost]:5225",
            "a b:1",
            "host:+80",
            "tcp://h:1",
            "h:1,h:2",
        ] {
            let e = Addr::parse(bad).unwrap_err();
            assert!(
                matches!(
                    e,
                    TicketError::InvalidInput {
                        argument: "addrs",
                        ..
                    }
                ),
                "{bad}: {e}"
            );
        }
    }

    #[test]
    fn c6_one_address_or_two_to_five() {
        let list = |n: usize| (0..n).map(|i| format!("h{i}:1")).collect::<Vec<_>>();
        for n in 1..=5 {
            assert_eq!(Addr::parse_all(&list(n)).unwrap().len(), n);
        }
        assert!(Addr::parse_all(&list(0)).is_err());
        assert!(Addr::parse_all(&list(6)).is_err());
    }
}
