//! Compilation of components: from the cache, or by a compiler process with limits, one at a time.
//!
//! Bytes that were never compiled here are validated first; their imports are granted. A compiler is a child process of low
//! priority ([`compiler`], this program with another argument) that limits its own processor time, memory and
//! wall time. Without a program it is a thread of this process. A load waits for it as long as
//! [`CompileWait`] allows; what is not ready by then is compiled on, and [`Compilers::compiled`] is notified when
//! a load would find more.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::process::{Resource, Rlimit};
use tokio::sync::Notify;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::plugin::loading::component_type::{FILE_MAX_BYTES, validate};
use crate::plugin::runtime::code_cache::{CacheKey, CodeCache, of_compiler};
use crate::plugin::runtime::engine::for_compiler;

/// The argument that makes this program a compiler.
pub const COMPILER_COMMAND: &str = "plugin-compiler";
/// Requests go first: beside workers that are always busy a compiler gets a tenth of a processor. At the
/// lowest priority, 19, it would get a seventieth, and a plugin would be ready after hours.
const NICE: i32 = 10;
/// Processor time of one compilation. 7 MB of code take 18 s, 18 MB of an interpreter less than a
/// minute.
const CPU_SECS_MAX: u64 = 120;
/// Address space of a compiler. The same 7 MB take 1.6 GB.
const MEMORY_MAX_BYTES: u64 = 2 << 30;
/// Wall time: at its priority it may get a tenth of one processor only.
const WALL_MAX: Duration = Duration::from_secs(600);
/// Largest output of a compiler; the cache takes no more.
const CODE_MAX_BYTES: u64 = 512 << 20;
/// Longest error text that is kept of a compiler.
const WORDS_MAX_BYTES: u64 = 2048;

/// Guards nothing but the processor: one component is compiled at a time.
static COMPILING: Mutex<()> = Mutex::new(());

/// Wait of a load for compilers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileWait {
    /// Until all is compiled: at start, and for tools.
    Whole,
    /// So long in all; what takes longer is compiled on, without the load.
    AtMost(Duration),
}

/// Components that are compiled or have been since they were asked for last.
pub struct Compilers {
    program: Option<PathBuf>,
    cache: Option<Arc<CodeCache>>,
    compiled: Arc<Notify>,
    /// Guards the map; shared with loads and with queries for running jobs.
    jobs: Mutex<HashMap<CacheKey, Arc<CompileJob>>>,
}

/// A component to compile.
#[derive(Clone, Copy)]
pub struct CompileInput<'a> {
    /// Name of the plugin, for `/state` and the log.
    pub plugin: &'a Arc<str>,
    pub bytes: &'a [u8],
    pub digest: &'a [u8; 32],
}

/// Result of a compilation.
type CompileResult = Result<Component, String>;

struct CompileJob {
    plugin: Arc<str>,
    /// None while it is compiled; written once.
    outcome: Mutex<Option<CompileResult>>,
    done: Condvar,
    compiler: Mutex<CompilerProcess>,
}

/// The compiler of a job.
#[derive(Default)]
struct CompilerProcess {
    child: Option<Child>,
    is_cancelled: bool,
}

impl Compilers {
    /// Compilers that are `program`, or threads. `finished` is notified when one has ended that no load
    /// waited for.
    pub fn new(
        program: Option<PathBuf>,
        cache: Option<Arc<CodeCache>>,
        finished: Arc<Notify>,
    ) -> Compilers {
        Compilers {
            program,
            cache,
            compiled: finished,
            jobs: Mutex::default(),
        }
    }

    /// The code of a component: none when it takes longer than `wait`; then it is compiled on.
    ///
    /// # Errors
    /// A component that is not valid, or the error text of the compiler.
    pub fn component(
        &self,
        engine: &Engine,
        source: CompileInput<'_>,
        wait: CompileWait,
    ) -> Result<Option<Component>, String> {
        let key = CacheKey::of(source.digest, engine);
        let running = self.jobs.lock().get(&key).map(Arc::clone);
        let job = match running {
            Some(job) => job,
            None => {
                let cached = self.cache.as_ref();
                if let Some(component) = cached.and_then(|cache| cache.get(engine, key)) {
                    return Ok(Some(component));
                }
                validate(source.bytes)?;
                self.begin(engine, source, key)?
            }
        };
        job.wait(wait).transpose()
    }

    /// Plugins that are compiled now, in order, each once.
    pub fn running(&self) -> Vec<Arc<str>> {
        let jobs = self.jobs.lock();
        let running = jobs.values().filter(|job| job.outcome.lock().is_none());
        let mut names: Vec<_> = running.map(|job| Arc::clone(&job.plugin)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Forgets failures, so that the next load compiles again.
    pub fn forget_failures(&self) {
        self.jobs
            .lock()
            .retain(|_, job| !matches!(&*job.outcome.lock(), Some(Err(_))));
    }

    /// Ends every compiler and forgets every result that `wanted` has no use for.
    pub fn keep_only(&self, engine: &Engine, wanted: &[[u8; 32]]) {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|digest| CacheKey::of(digest, engine))
            .collect();
        self.jobs.lock().retain(|key, job| {
            let stays = wanted.contains(key);
            if !stays {
                job.cancel();
            }
            stays
        });
    }

    fn begin(
        &self,
        engine: &Engine,
        source: CompileInput<'_>,
        key: CacheKey,
    ) -> Result<Arc<CompileJob>, String> {
        let job = Arc::new(CompileJob {
            plugin: Arc::clone(source.plugin),
            outcome: Mutex::default(),
            done: Condvar::new(),
            compiler: Mutex::default(),
        });
        let (of_thread, engine) = (Arc::clone(&job), engine.clone());
        let (program, cache) = (self.program.clone(), self.cache.clone());
        let (bytes, finished) = (source.bytes.to_vec(), Arc::clone(&self.compiled));
        std::thread::Builder::new()
            .name("plugin-compiler".into())
            .spawn(move || {
                let compiling = COMPILING.lock();
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    of_thread.compile(program.as_deref(), &engine, &bytes)
                }));
                drop(compiling);
                let outcome =
                    outcome.unwrap_or_else(|_| Err("the compiler panicked on it".to_owned()));
                if let (Ok(component), Some(cache)) = (&outcome, &cache) {
                    cache.put(key, component);
                }
                *of_thread.outcome.lock() = Some(outcome);
                of_thread.done.notify_all();
                finished.notify_one();
            })
            .map_err(|error| format!("cannot start a thread to compile it: {error}"))?;
        self.jobs.lock().insert(key, Arc::clone(&job));
        Ok(job)
    }
}

impl CompileJob {
    fn wait(&self, wait: CompileWait) -> Option<CompileResult> {
        let mut outcome = self.outcome.lock();
        match wait {
            CompileWait::Whole => self.done.wait_while(&mut outcome, |done| done.is_none()),
            CompileWait::AtMost(wait) => {
                self.done
                    .wait_while_for(&mut outcome, |done| done.is_none(), wait);
            }
        }
        outcome.clone()
    }

    fn compile(&self, program: Option<&Path>, engine: &Engine, bytes: &[u8]) -> CompileResult {
        let Some(program) = program else {
            return compile_here(engine, bytes);
        };
        let mut command = Command::new(program);
        command
            .arg(COMPILER_COMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (input, mut output, words) = {
            let mut running = self.compiler.lock();
            if running.is_cancelled {
                return Err("nothing needs it any more".to_owned());
            }
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(problem) => {
                    tracing::warn!(%problem, "cannot start a compiler of plugins: this process compiles, without limits");
                    return compile_here(engine, bytes);
                }
            };
            let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            running.child = Some(child);
            pipes
        };
        // An early end is reported below.
        let _ = input.map(|mut input| input.write_all(bytes));
        let mut code = Vec::new();
        let mut error_text = String::new();
        if let Some(output) = &mut output {
            let _ = output.take(CODE_MAX_BYTES).read_to_end(&mut code);
        }
        if let Some(words) = words {
            let mut text = Vec::new();
            let _ = words.take(WORDS_MAX_BYTES).read_to_end(&mut text);
            error_text = String::from_utf8_lossy(&text).into_owned();
        }
        drop(output);
        let Some(mut child) = self.compiler.lock().child.take() else {
            return Err("nothing needs it any more".to_owned());
        };
        let status = child.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => of_compiler(engine, &code),
            false => Err(end_reason(status, &error_text)),
        }
    }

    fn cancel(&self) {
        let mut running = self.compiler.lock();
        running.is_cancelled = true;
        if let Some(child) = &mut running.child {
            // It has ended already where this fails; its thread waits for it.
            let _ = child.kill();
        }
    }
}

/// In this process, on the calling thread, which is one of its own.
fn compile_here(engine: &Engine, bytes: &[u8]) -> CompileResult {
    // On Linux this is the thread's own. Refused, it compiles at the common priority.
    let _ = rustix::process::setpriority_process(None, NICE);
    Component::from_binary(engine, bytes).map_err(|error| format!("{error:#}"))
}

fn end_reason(status: ExitStatus, error_text: &str) -> String {
    if error_text.contains("memory allocation") {
        return format!(
            "compiling it takes more than {} MiB of memory",
            MEMORY_MAX_BYTES >> 20
        );
    }
    match status.signal() {
        Some(signal) if signal == libc::SIGXCPU => {
            format!("compiling it takes more than {CPU_SECS_MAX} s of processor time")
        }
        Some(signal) => format!("the compiler was ended by signal {signal}"),
        None => error_text.trim().to_owned(),
    }
}

/// A compiler's life: a component from standard input, its code to standard output, or a sentence to
/// standard error. For the child processes of `Compilers`.
pub fn compiler() -> ExitCode {
    let compiled = limit()
        .and_then(|()| within_wall_time(read_and_compile))
        .and_then(|code| {
            let mut output = std::io::stdout();
            let written = output.write_all(&code).and_then(|()| output.flush());
            written.map_err(|error| format!("the compiler cannot hand over its code: {error}"))
        });
    match compiled {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}

fn read_and_compile() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(FILE_MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("the compiler is given nothing to compile: {error}"))?;
    let engine = for_compiler()?;
    engine
        .precompile_component(&bytes)
        .map_err(|error| format!("{error:#}"))
}

fn limit() -> Result<(), String> {
    let set = |resource, current: u64, maximum: u64| {
        let limit = Rlimit {
            current: Some(current),
            maximum: Some(maximum),
        };
        rustix::process::setrlimit(resource, limit)
            .map_err(|error| format!("the compiler cannot limit itself: {error}"))
    };
    set(Resource::Cpu, CPU_SECS_MAX, CPU_SECS_MAX + 1)?;
    set(Resource::As, MEMORY_MAX_BYTES, MEMORY_MAX_BYTES)?;
    set(Resource::Core, 0, 0)?;
    let _ = rustix::process::setpriority_process(None, NICE);
    // It has no use without the process that started it.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    Ok(())
}

fn within_wall_time(
    compile: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static,
) -> Result<Vec<u8>, String> {
    let (hand_over, compiled) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("plugin-compiler".into())
        .spawn(move || hand_over.send(compile()))
        .map_err(|error| format!("the compiler gets no thread: {error}"))?;
    compiled
        .recv_timeout(WALL_MAX)
        .unwrap_or_else(|ended| match ended {
            std::sync::mpsc::RecvTimeoutError::Timeout => Err(format!(
                "compiling it takes more than {} s",
                WALL_MAX.as_secs()
            )),
            std::sync::mpsc::RecvTimeoutError::Disconnected => {
                Err("the compiler panicked on it".to_owned())
            }
        })
}
