//! From bytes to code: on one thread of low priority, one component at a time, or from the cache.
//!
//! It judges nothing: bytes that come here are valid, their imports granted. The thread lives for one
//! compilation and is joined before the answer.

use parking_lot::Mutex;
use wasmtime::component::Component;

use super::cache::{Cache, CacheKey};
use super::engine::Runtime;

/// Requests go first: the lowest priority that an ordinary process may give itself and still run.
const NICE: i32 = 19;

/// Guards nothing but the processor: who holds it compiles.
static COMPILING: Mutex<()> = Mutex::new(());

/// The code of a component with this digest.
///
/// # Errors
/// The compiler's word.
pub fn compile(
    runtime: &Runtime,
    cache: Option<&Cache>,
    bytes: &[u8],
    digest: &[u8],
) -> Result<Component, String> {
    let key = CacheKey::of(digest, &runtime.engine);
    let _turn = COMPILING.lock();
    if let Some(component) = cache.and_then(|cache| cache.get(&runtime.engine, key)) {
        return Ok(component);
    }
    let component = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("plugin-compiler".into())
            .spawn_scoped(scope, || {
                // On Linux this is the thread's own. Refused, it compiles at the common priority.
                let _ = rustix::process::setpriority_process(None, NICE);
                Component::from_binary(&runtime.engine, bytes).map_err(|error| format!("{error:#}"))
            })
            .map_err(|error| format!("cannot start a thread to compile it: {error}"))?;
        thread
            .join()
            .unwrap_or_else(|_| Err("the compiler panicked on it".to_owned()))
    })?;
    if let Some(cache) = cache {
        cache.put(key, &component);
    }
    Ok(component)
}
