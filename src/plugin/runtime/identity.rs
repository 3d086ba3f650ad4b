//! Record of the use of a plugin by a request.
//!
//! Names and digests only, not the revision itself.

use std::sync::Arc;

use crate::telemetry::event::{PluginIdentity, PluginUse};

/// Records the use of a plugin, once a hook.
pub fn record_use(
    uses: &mut Vec<PluginUse>,
    identity: Option<&Arc<PluginIdentity>>,
    hook: &'static str,
) {
    let Some(identity) = identity else {
        return;
    };
    let is_known = |known: &PluginUse| known.hook == hook && known.plugin.sha256 == identity.sha256;
    if uses.iter().any(is_known) {
        return;
    }
    uses.push(PluginUse {
        plugin: Arc::clone(identity),
        hook,
    });
}
