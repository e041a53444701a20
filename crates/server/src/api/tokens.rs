//! `/v1/tokens`: who may do what. A token is shown once, when it is made; only its hash is kept.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use wayhold_model::Timestamp;
use wayhold_model::admission::Fill;
use wayhold_store::catalog::TokenRecord;

use super::body::Wish;
use super::caller::{Admin, Caller};
use super::list::List;
use crate::app::App;
use crate::auth::{Principal, PrincipalKind};
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/tokens", get(list).post(create))
        .route("/v1/tokens/{prefix}/revoke", post(revoke))
}

/// A token without its secret.
#[derive(Debug, Serialize)]
pub struct TokenBody {
    prefix: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    roles: Vec<String>,
    /// From which fraction of a limit on its events are refused; `null`: from the limit itself.
    admit_until: Option<f64>,
    created_at: String,
    created_by: String,
    revoked_at: Option<String>,
}

impl From<TokenRecord> for TokenBody {
    fn from(record: TokenRecord) -> Self {
        Self {
            prefix: record.prefix,
            name: record.principal.name,
            kind: record.principal.kind,
            roles: record.principal.roles,
            admit_until: record.admit_until.map(Fill::fraction),
            created_at: record.created_at.to_string(),
            created_by: record.created_by,
            revoked_at: record.revoked_at.as_ref().map(Timestamp::to_string),
        }
    }
}

/// A token that was just made.
#[derive(Debug, Serialize)]
pub struct CreatedBody {
    /// The whole token; it cannot be shown again.
    pub token: String,
    /// What is kept of it.
    #[serde(flatten)]
    pub record: TokenBody,
}

/// For whom to make a token.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NewTokenBody {
    /// Name of the principal.
    pub name: String,
    /// `person`, `service` or `model`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Roles and labels.
    pub roles: Vec<String>,
    /// From which fraction of a limit on events of this token are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admit_until: Option<f64>,
}

impl NewTokenBody {
    /// The principal that it names.
    ///
    /// # Errors
    /// Says which field is wrong and what was expected.
    pub fn principal(&self) -> Result<Principal, String> {
        let kind = PrincipalKind::from_name(&self.kind)
            .ok_or("type: expected \"person\", \"service\" or \"model\"")?;
        let admit_until = Fill::from_fraction(self.admit_until.unwrap_or(1.0))
            .ok_or("admit_until: expected a number above 0 and up to 1, such as 0.8")?;
        let principal = Principal::new(&self.name, kind, &self.roles);
        Ok(Principal {
            admit_until,
            ..principal.map_err(|error| error.to_string())?
        })
    }
}

async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Wish(wish): Wish<NewTokenBody>,
) -> Result<(StatusCode, Json<CreatedBody>), Problem> {
    let principal = wish
        .principal()
        .map_err(|detail| Problem::new(ProblemType::InvalidRequest, detail))?;
    let created = blocking(move || app.auth.create(&principal, &caller.principal.name)).await??;
    let body = CreatedBody {
        token: created.token,
        record: created.record.into(),
    };
    Ok((StatusCode::CREATED, Json(body)))
}

async fn list(State(app): State<Arc<App>>, _: Caller<Admin>) -> Json<List<TokenBody>> {
    let tokens = app.store.catalog().tokens();
    Json(List::whole(
        tokens.into_iter().map(TokenBody::from).collect(),
    ))
}

async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Path(prefix): Path<String>,
) -> Result<Json<TokenBody>, Problem> {
    let revoke = move || {
        app.store
            .catalog()
            .revoke_token(&prefix, &caller.principal.name)
    };
    Ok(Json(blocking(revoke).await??.into()))
}
