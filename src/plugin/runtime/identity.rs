//! Identity of a revision in events, and the record of its use by a request.
//!
//! Plain names and digests, not the revision itself.

use std::sync::Arc;

use crate::telemetry::event::PluginUse;

/// Name of a revision in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionIdentity {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Digest of the component.
    pub sha256: Arc<str>,
    /// Digest of its settings.
    pub config: Arc<str>,
}

/// Records the use of a plugin, once a hook.
pub fn record_use(
    uses: &mut Vec<PluginUse>,
    identity: Option<&RevisionIdentity>,
    hook: &'static str,
) {
    let Some(RevisionIdentity {
        name,
        sha256,
        config,
    }) = identity
    else {
        return;
    };
    if uses
        .iter()
        .any(|known| known.hook == hook && known.sha256 == *sha256)
    {
        return;
    }
    uses.push(PluginUse {
        name: name.clone(),
        sha256: sha256.clone(),
        config: config.clone(),
        hook,
    });
}
