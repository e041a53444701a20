//! Table `auth` of a destination that speaks HTTP: at most one credential, and a client certificate. What
//! is secret comes by reference only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use ipnet::IpNet;
use url::Url;

use crate::config::{Choice, Secret, Section};
use crate::sink::webhook::config::{check_reach, fixed_header_value, is_reserved, read_url};

/// How a destination knows who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthConfig {
    /// What requests carry.
    pub credential: Credential,
    /// What connections show: certificate chain and private key, both PEM, one after the other.
    pub identity: Option<Secret>,
}

/// What requests carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    /// Nothing.
    #[default]
    None,
    /// A header, the same each time: bearer, basic, or one of the API's own. Marked sensitive.
    Header {
        /// Its name.
        name: HeaderName,
        /// Its value.
        value: HeaderValue,
    },
    /// A token of an authorization server.
    OAuth2(OAuth2Config),
}

impl Credential {
    /// The header that carries it.
    pub(crate) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::None => None,
            Self::Header { name, .. } => Some(name),
            Self::OAuth2(_) => Some(&AUTHORIZATION),
        }
    }
}

/// OAuth 2.0 client credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth2Config {
    /// Where tokens are asked for.
    pub token_url: Url,
    /// Who asks.
    pub client_id: String,
    /// With which secret.
    pub client_secret: Secret,
    /// What for; several joined by blanks.
    pub scope: Option<String>,
    /// What the server wants besides, such as `audience` or `resource`.
    pub parameters: Vec<(String, String)>,
    /// How id and secret are shown.
    pub authentication: ClientAuthentication,
}

/// How id and secret are shown to the authorization server (RFC 6749 section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// As `Authorization: Basic`; every server must take it.
    Basic,
    /// As fields of the form; some take only that.
    Body,
}

impl Choice for ClientAuthentication {
    const WORDS: &'static [(&'static str, Self)] = &[("basic", Self::Basic), ("body", Self::Body)];
}

/// The keys of credentials, of which one may be set.
const CREDENTIALS: [&str; 4] = ["bearer", "basic", "header", "oauth2"];

/// Most parameters of a token request: servers know one or two.
const PARAMETERS_MAX: usize = 10;

impl AuthConfig {
    /// Reads `auth`. `headers` are the names of headers that are set otherwise.
    pub(crate) fn read<'h>(
        section: &mut Section<'_, '_, '_>,
        allow_networks: &[IpNet],
        mut headers: impl Iterator<Item = &'h HeaderName>,
    ) -> Self {
        section.table("auth", |section| {
            let set = CREDENTIALS.iter().filter(|key| section.has(key)).count();
            if set > 1 {
                let words = CREDENTIALS.join(", ");
                section.problem("", format!("expected at most one of {words}"));
            }
            let credential = read_credential(section, allow_networks);
            if let Some(name) = credential.header()
                && headers.any(|header| header == name)
            {
                section.problem(
                    "",
                    format!("expected {name} in auth or in headers, not in both"),
                );
            }
            Self {
                credential,
                identity: read_identity(section),
            }
        })
    }
}

fn read_credential(section: &mut Section<'_, '_, '_>, allow_networks: &[IpNet]) -> Credential {
    let bearer = section.find_reference("bearer").and_then(|token| {
        let value = format!("Bearer {}", token.expose());
        header_of(section, "bearer", AUTHORIZATION, &value)
    });
    let basic = where_set(section, "basic", read_basic);
    let header = where_set(section, "header", read_header);
    let oauth2 = where_set(section, "oauth2", |section| {
        read_oauth2(section, allow_networks)
    });
    let all = [bearer, basic, header, oauth2];
    all.into_iter().flatten().next().unwrap_or_default()
}

/// Reads a table only where it is there: everything in it is required then.
fn where_set<'t, 'e, R>(
    section: &mut Section<'t, '_, 'e>,
    key: &str,
    read: impl FnOnce(&mut Section<'t, '_, 'e>) -> Option<R>,
) -> Option<R> {
    let set = section.has(key);
    section.table(key, |section| if set { read(section) } else { None })
}

fn read_basic(section: &mut Section<'_, '_, '_>) -> Option<Credential> {
    let user = section.require::<String>("user", "\"wayhold\"");
    let password = section.require_reference("password");
    let (user, password) = (user?, password?);
    if user.contains(':') {
        section.problem("user", "expected a text without \":\"");
    }
    let joined = STANDARD.encode(format!("{user}:{}", password.expose()));
    header_of(
        section,
        "password",
        AUTHORIZATION,
        &format!("Basic {joined}"),
    )
}

fn read_header(section: &mut Section<'_, '_, '_>) -> Option<Credential> {
    let name = section.require::<String>("name", "\"x-api-key\"");
    let value = section.require_reference("value");
    let name = HeaderName::from_bytes(name?.as_bytes()).ok();
    let Some(name) = name.filter(|name| !is_reserved(name)) else {
        section.problem("name", "expected the name of a header that is not reserved");
        return None;
    };
    header_of(section, "value", name, value?.expose())
}

fn header_of(
    section: &mut Section<'_, '_, '_>,
    key: &str,
    name: HeaderName,
    value: &str,
) -> Option<Credential> {
    let value = fixed_header_value(value);
    if value.is_none() {
        section.problem(
            key,
            "expected a secret of visible ASCII characters that fits a header",
        );
    }
    Some(Credential::Header {
        name,
        value: value?,
    })
}

fn read_oauth2(section: &mut Section<'_, '_, '_>, allow_networks: &[IpNet]) -> Option<Credential> {
    let token_url = read_url(section, "token_url", "\"https://HOST/oauth2/token\"");
    if let Some(url) = &token_url {
        check_reach("token_url", url, allow_networks, section);
    }
    let client_id = section.require::<String>("client_id", "\"wayhold\"");
    let client_secret = section.require_reference("client_secret");
    let scope = section.find::<String>("scope");
    let authentication = section.get("authentication", ClientAuthentication::Basic);
    let parameters = section.table("parameters", read_parameters);
    Some(Credential::OAuth2(OAuth2Config {
        token_url: token_url?,
        client_id: client_id?,
        client_secret: client_secret?,
        scope,
        parameters,
        authentication,
    }))
}

fn read_parameters(section: &mut Section<'_, '_, '_>) -> Vec<(String, String)> {
    let names = section.keys();
    if names.len() > PARAMETERS_MAX {
        section.problem("", format!("expected at most {PARAMETERS_MAX} parameters"));
    }
    let mut parameters = Vec::new();
    for name in names {
        if let Some(value) = section.find::<String>(&name) {
            parameters.push((name, value));
        }
    }
    parameters
}

/// Certificate and key, held against each other when the configuration is read.
fn read_identity(section: &mut Section<'_, '_, '_>) -> Option<Secret> {
    where_set(section, "certificate", |section| {
        let chain = section.require_reference("chain");
        let key = section.require_reference("key");
        let (chain, key) = (chain?, key?);
        let pem = format!("{}\n{}\n", chain.expose(), key.expose());
        if reqwest::Identity::from_pem(pem.as_bytes()).is_err() {
            section.problem(
                "",
                "expected chain and key as PEM, the key without a password",
            );
            return None;
        }
        Some(Secret::new(&pem))
    })
}
