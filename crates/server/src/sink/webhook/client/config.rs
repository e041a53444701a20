//! Keys of the client, the same for every kind that speaks HTTP.

use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::config::Section;

/// How one destination's client connects and how long it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Whose certificates are trusted, and nobody else's; none: those that this machine trusts.
    pub ca: Vec<CertificateDer<'static>>,
    /// Time for the connection alone: name, TCP and TLS. What takes longer is down, and giving up here
    /// keeps it certain that nothing was sent.
    pub connect_timeout: Duration,
    /// Time until the head of the answer has come, from the attempt's begin; none: the attempt's own.
    pub header_timeout: Option<Duration>,
    /// How long connections are used before new ones are made, to whatever the name means by then.
    pub connection_age: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            ca: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            header_timeout: None,
            connection_age: Duration::from_secs(600),
        }
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

impl ClientConfig {
    /// Reads the keys.
    pub(in crate::sink) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        let default = Self::default();
        let header_timeout = section.find::<Duration>("header_timeout");
        if header_timeout.is_some_and(|wait| !(MILLISECOND..=HOUR).contains(&wait)) {
            section.problem("header_timeout", "expected between 1ms and 1h");
        }
        Self {
            ca: read_ca(section),
            connect_timeout: section.within(
                "connect_timeout",
                default.connect_timeout,
                MILLISECOND,
                HOUR,
            ),
            header_timeout,
            connection_age: section.within("connection_age", default.connection_age, SECOND, DAY),
        }
    }
}

/// Certificates in PEM. Each must be one that can be trusted, or every delivery would fail.
fn read_ca(section: &mut Section<'_, '_, '_>) -> Vec<CertificateDer<'static>> {
    let Some(text) = section.find_secret("ca", |_| "[certificates]".to_owned()) else {
        return Vec::new();
    };
    match certificates_of(text.expose()) {
        Some(found) => found,
        None => {
            section.problem("ca", "expected certificates in PEM, at least one");
            Vec::new()
        }
    }
}

fn certificates_of(text: &str) -> Option<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .ok()?;
    let mut roots = RootCertStore::empty();
    for certificate in &found {
        roots.add(certificate.clone()).ok()?;
    }
    (!found.is_empty()).then_some(found)
}
