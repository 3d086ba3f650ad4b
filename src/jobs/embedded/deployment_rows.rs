//! Deployments that accounts have made, as rows of the embedded store.
//!
//! Not which of them are in force: the directory decides that.

use rusqlite::{Result as SqlResult, Row, params};

use super::database::{Database, json_column, json_text};
use crate::jobs::deployments::{DeploymentResult, DeploymentWrite, StoredDeployment};

/// Returns the deployments that accounts have made, by name.
pub fn deployments(database: &Database) -> SqlResult<Vec<StoredDeployment>> {
    let sql = "SELECT document FROM deployments ORDER BY name";
    let mut statement = database.connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| json_column(row, 0))?;
    rows.collect()
}

/// Writes a change where nothing has come between.
pub fn write_deployment(
    database: &Database,
    write: &DeploymentWrite,
) -> SqlResult<DeploymentResult> {
    let (sql, deployment) = match write {
        DeploymentWrite::Create(deployment, max) => {
            let sql = "SELECT count(*), count(*) FILTER (WHERE name = ?2) FROM deployments
                       WHERE account = ?1 OR name = ?2";
            let count = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?));
            let values = params![deployment.account.as_str(), &*deployment.spec.id];
            let mut statement = database.connection.prepare_cached(sql)?;
            match statement.query_row(values, count)? {
                (_, 1..) => return Ok(DeploymentResult::Exists),
                (made, _) if made >= *max => return Ok(DeploymentResult::Full),
                _ => {}
            }
            let sql = "INSERT INTO deployments (name, account, document) VALUES (?1, ?2, ?3)";
            (sql, deployment)
        }
        DeploymentWrite::Release(deployment) => {
            let sql = "UPDATE deployments SET document = ?3 WHERE name = ?1 AND account = ?2
                       AND document ->> 'release' = ?4";
            (sql, deployment)
        }
        DeploymentWrite::Remove(name) => {
            let sql = "DELETE FROM deployments WHERE name = ?1";
            let changed = database
                .connection
                .prepare_cached(sql)?
                .execute([&**name])?;
            return Ok(deployment_result(changed));
        }
    };
    let (name, account) = (&*deployment.spec.id, deployment.account.as_str());
    let document = json_text(deployment)?;
    let mut statement = database.connection.prepare_cached(sql)?;
    let changed = match write {
        DeploymentWrite::Release(next) => {
            statement.execute(params![name, account, document, next.release - 1])?
        }
        _ => statement.execute(params![name, account, document])?,
    };
    Ok(deployment_result(changed))
}

fn deployment_result(changed: usize) -> DeploymentResult {
    match changed {
        0 => DeploymentResult::Stale,
        _ => DeploymentResult::Done,
    }
}
