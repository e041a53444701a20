//! Principals and their tokens in the catalogue. A token is found by its public prefix and proven by a
//! keyed hash; making and checking that hash is the business of whoever speaks with clients.

use rusqlite::{Connection, OptionalExtension, params};
use wayhold_model::admission::Fill;

use crate::catalog::audit;
use crate::catalog::file::{Catalog, CatalogError, timestamp};
use crate::catalog::{NewToken, PrincipalRecord, TokenRecord};

/// Tokens got the filling of limits until which they are admitted.
pub(super) const FROM_FORMAT_2: &str = "ALTER TABLE tokens ADD COLUMN admit_until INTEGER;";

impl Catalog {
    /// Stores a token, and its principal where that is new.
    ///
    /// # Errors
    /// `Exists`: the prefix is taken, or the principal has another kind or other roles; or the change
    /// could not be recorded.
    pub fn create_token(&self, token: &NewToken, by: &str) -> Result<TokenRecord, CatalogError> {
        let NewToken {
            prefix,
            hash,
            principal,
            admit_until,
        } = token;
        self.change(|change| {
            let known = change
                .transaction
                .query_row(
                    "SELECT name, kind, roles FROM principals WHERE name = ?1",
                    [&principal.name],
                    |row| read_principal(row, 0),
                )
                .optional()?;
            match known {
                Some(known) if known != *principal => {
                    return Err(CatalogError::Exists { what: "principal" }.into());
                }
                Some(_) => {}
                None => {
                    change.transaction.execute(
                        "INSERT INTO principals VALUES (?1, ?2, ?3)",
                        params![principal.name, principal.kind, roles_text(&principal.roles)],
                    )?;
                }
            }
            let added = change.transaction.execute(
                "INSERT OR IGNORE INTO tokens VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6)",
                params![
                    prefix,
                    hash,
                    principal.name,
                    change.now.as_micros().cast_signed(),
                    by,
                    admit_until.map(Fill::thousandths)
                ],
            )?;
            if added == 0 {
                return Err(CatalogError::Exists { what: "token" }.into());
            }
            audit::append(change, by, "token.created", prefix, Some(&principal.name))?;
            Ok(())
        })?;
        self.token(prefix)
            .ok_or(CatalogError::NotFound { what: "token" })
    }

    /// Every token ever made, the revoked ones too.
    pub fn tokens(&self) -> Vec<TokenRecord> {
        self.view().tokens.clone()
    }

    /// The token of that public prefix; the caller looks at `revoked_at`.
    pub fn token(&self, prefix: &str) -> Option<TokenRecord> {
        self.view()
            .tokens
            .iter()
            .find(|token| token.prefix == prefix)
            .cloned()
    }

    /// Whether any token was ever made: from then on, requests need one.
    pub fn has_tokens(&self) -> bool {
        !self.view().tokens.is_empty()
    }

    /// Revokes a token for good. Revoking again changes nothing.
    ///
    /// # Errors
    /// `NotFound`, or the change could not be recorded.
    pub fn revoke_token(&self, prefix: &str, by: &str) -> Result<TokenRecord, CatalogError> {
        let not_found = CatalogError::NotFound { what: "token" };
        let Some(token) = self.token(prefix) else {
            return Err(not_found);
        };
        if token.revoked_at.is_some() {
            return Ok(token);
        }
        self.change(|change| {
            change.transaction.execute(
                "UPDATE tokens SET revoked_at = ?2 WHERE prefix = ?1 AND revoked_at IS NULL",
                params![prefix, change.now.as_micros().cast_signed()],
            )?;
            let owner = &token.principal.name;
            audit::append(change, by, "token.revoked", prefix, Some(owner))?;
            Ok(())
        })?;
        self.token(prefix).ok_or(not_found)
    }
}

/// Roles as they lie in the file: a JSON array, since labels are free text.
fn roles_text(roles: &[String]) -> String {
    serde_json::Value::from(roles).to_string()
}

fn read_principal(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<PrincipalRecord> {
    let roles: String = row.get(first + 2)?;
    Ok(PrincipalRecord {
        name: row.get(first)?,
        kind: row.get(first + 1)?,
        roles: serde_json::from_str(&roles).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(
                first + 2,
                rusqlite::types::Type::Text,
                Box::new(error),
            )
        })?,
    })
}

pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<TokenRecord>> {
    let mut statement = connection.prepare(
        "SELECT prefix, hash, name, kind, roles, created_at, created_by, revoked_at, admit_until
         FROM tokens JOIN principals ON name = principal ORDER BY created_at, prefix",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(TokenRecord {
            prefix: row.get(0)?,
            hash: row.get(1)?,
            principal: read_principal(row, 2)?,
            created_at: timestamp(row.get(5)?),
            created_by: row.get(6)?,
            revoked_at: row.get::<_, Option<i64>>(7)?.map(timestamp),
            admit_until: row.get::<_, Option<u32>>(8)?.map(Fill::from_thousandths),
        })
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixed;

    fn token(prefix: &str, roles: &[&str]) -> NewToken {
        NewToken {
            prefix: prefix.to_owned(),
            hash: [9; 32],
            principal: PrincipalRecord {
                name: "shop".to_owned(),
                kind: "service".to_owned(),
                roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            },
            admit_until: None,
        }
    }

    #[test]
    fn a_token_keeps_until_which_filling_it_is_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let open = || fixed::open(folder.path());
        let bulk = NewToken {
            admit_until: Some(Fill::from_thousandths(800)),
            ..token("abc", &["ingest"])
        };
        let made = open().create_token(&bulk, "ada").unwrap();
        assert_eq!(made.admit_until, bulk.admit_until);
        // Another token of the same principal has its own.
        open()
            .create_token(&token("def", &["ingest"]), "ada")
            .unwrap();
        let until = |prefix| open().token(prefix).unwrap().admit_until;
        assert_eq!((until("abc"), until("def")), (bulk.admit_until, None));
    }

    #[test]
    fn a_token_is_found_by_its_prefix_and_stays_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let open = || fixed::open(folder.path());
        let catalog = open();
        assert!(!catalog.has_tokens());
        let made = catalog
            .create_token(&token("abc", &["ingest", "buyer, north"]), "ada")
            .unwrap();
        assert_eq!(made.principal.roles, ["ingest", "buyer, north"]);
        let version = catalog.version();
        catalog.revoke_token("abc", "eve").unwrap();
        assert!(catalog.version() > version, "caches see the revocation");
        drop(catalog);
        let catalog = open();
        assert!(catalog.has_tokens());
        assert!(catalog.token("abc").unwrap().revoked_at.is_some());
        assert!(matches!(
            catalog.revoke_token("xyz", "eve"),
            Err(CatalogError::NotFound { .. })
        ));
    }

    #[test]
    fn a_token_never_changes_what_its_principal_may_do() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = fixed::open(folder.path());
        catalog
            .create_token(&token("abc", &["ingest"]), "ada")
            .unwrap();
        assert!(matches!(
            catalog.create_token(&token("def", &["admin"]), "eve"),
            Err(CatalogError::Exists { what: "principal" })
        ));
        assert!(matches!(
            catalog.create_token(&token("abc", &["ingest"]), "eve"),
            Err(CatalogError::Exists { what: "token" })
        ));
        assert_eq!(catalog.tokens().len(), 1);
    }
}
