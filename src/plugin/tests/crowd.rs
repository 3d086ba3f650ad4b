//! Many callers at once: slots are a bound, a slow hook leaves its worker, nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use infergate_core::Millis;
use serde_json::json;

use super::guests::Wat;
use super::stand::{TestHost, calling, failures, model, price, user_of};
use crate::plugin::{InstancePolicy, PluginSnapshot, TaskInput, World};

/// The component with a module more, of one table, made so many times.
fn with_core_instances(component: &[u8], count: u8) -> Vec<u8> {
    use wasmparser::{Parser, Payload};
    let mut depth = 0;
    let mut modules = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload.unwrap() {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ModuleSection { .. } => modules += u8::from(depth == 1),
            _ => {}
        }
    }
    let module = wat::parse_str("(module (table 1 funcref))").unwrap();
    let mut instances = vec![count];
    for _ in 0..count {
        instances.extend([0, modules, 0]);
    }
    let mut bytes = component.to_vec();
    for (id, section) in [(1, module), (2, instances)] {
        assert!(section.len() < 128, "a length of one byte");
        bytes.extend([id, section.len() as u8]);
        bytes.extend(section);
    }
    bytes
}

#[test]
fn a_plugin_of_many_parts_does_not_keep_another_from_its_callers() {
    let stand = TestHost::new();
    let world = World::BillingFormula;
    let greedy = stand.spec("greedy", world, &Wat::of(world));
    let bytes = std::fs::read(&greedy.file).unwrap();
    std::fs::write(&greedy.file, with_core_instances(&bytes, 14)).unwrap();
    let other = stand.spec("other", world, &Wat::of(world));
    let uses =
        |id: &str, plugin: &str| model(json!({ "id": id, "plugins": { "billing": plugin } }));
    let models = [uses("m", "greedy"), uses("n", "other")];
    let specs = [greedy, other];
    let plugins = stand
        .host
        .load(&PluginSnapshot::default(), &specs, &models)
        .unwrap();
    for account in 0..16 {
        let account = format!("account-{account}");
        assert!(
            !price(&plugins, &models[0], &account).fell_back,
            "{account}"
        );
    }
    for account in 0..16 {
        let account = format!("another-{account}");
        assert!(
            !price(&plugins, &models[1], &account).fell_back,
            "{account}"
        );
    }
    assert_eq!(failures(&plugins, "unavailable"), 0);
}

#[test]
fn waiting_guests_keep_no_more_memory_than_allowed_and_go_after_a_minute() {
    let stand = TestHost::new();
    let world = World::BillingFormula;
    let wat = Wat::of(world).memory("(memory (export \"memory\") 16)");
    let spec = stand.spec("large", world, &wat);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    stand.host.allow_warm_mib(4);
    stand.host.expire_guests_at(Millis(60_000));
    for account in 0..12 {
        let account = format!("account-{account}");
        assert!(!price(&plugins, &model, &account).fell_back, "{account}");
    }
    let counts = stand.host.counts();
    assert_eq!(counts.instances_live, 3);
    assert!(counts.warm_bytes <= 4 << 20, "{}", counts.warm_bytes);
    stand.host.expire_guests_at(Millis(119_999));
    assert_eq!(stand.host.counts().instances_live, 3);
    stand.host.expire_guests_at(Millis(120_000));
    let counts = stand.host.counts();
    assert_eq!((counts.instances_live, counts.warm_bytes), (0, 0));
    stand.host.allow_warm_mib(0);
    assert!(!price(&plugins, &model, "acme").fell_back);
    assert_eq!(stand.host.counts().instances_live, 0);
}

/// About 3 ms of work, then the body as it was.
const SLOW: &str = "(local $n i32) (loop $on (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br_if $on (i32.lt_u (local.get $n) (i32.const 12000000)))) (call $clear) (i32.const 1024)";

#[test]
fn callers_of_eight_threads_all_get_their_answer_and_slots_stay_bounded() {
    let stand = TestHost::new();
    let mut spec = stand.spec(
        "p",
        World::BillingFormula,
        &Wat::of(World::BillingFormula).realloc("(i32.const 8192)"),
    );
    // A busy virtual machine charges a call now and then with milliseconds that others used.
    spec.limits.deadline_ms = Some(500);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let priced = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (plugins, model, priced) = (&plugins, &model, &priced);
            scope.spawn(move || {
                for n in 0..2_000 {
                    let account = format!("account-{}", (thread + n) % 20);
                    if !price(plugins, model, &account).fell_back {
                        priced.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(priced.load(Ordering::Relaxed), 16_000);
    assert!(stand.host.counts().instances_live <= 16);
    assert_eq!(failures(&plugins, "unavailable"), 0);
}

/// Some seconds of a slow machine.
const CALLS_MAX: u32 = 500;

/// True when another task runs on a runtime's only worker while `call` is made there again and again. The
/// caller never waits: while it holds the worker no other task runs.
fn leaves_the_worker(call: impl Fn() + Send + 'static) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let worker = runtime.handle().clone();
        let (began, waits) = tokio::sync::oneshot::channel();
        let flag = Arc::clone(&seen);
        let task = worker.spawn(async move {
            began.send(()).unwrap();
            (0..CALLS_MAX).any(|_| {
                call();
                flag.load(Ordering::Acquire)
            })
        });
        waits.await.unwrap();
        let other = worker.spawn(async move { seen.store(true, Ordering::Release) });
        let left = task.await.unwrap();
        other.await.unwrap();
        left
    })
}

#[test]
fn a_guest_that_is_long_in_the_making_leaves_the_worker_to_the_other_requests() {
    let stand = TestHost::new();
    // Over 6 ms of work for each instance, next to nothing for a call.
    let configure = SLOW.replace("12000000", "24000000").replace(
        "(call $clear)",
        "(i32.store8 (i32.const 1024) (i32.const 0))",
    );
    let world = World::BillingFormula;
    let mut spec = stand.spec("slow", world, &Wat::of(world).configure(&configure));
    // Every call makes a guest of its own.
    spec.instance = InstancePolicy::Fresh;
    let plugins = Arc::new(stand.load(&spec).unwrap());
    let model = user_of(&spec);
    let priced = Arc::clone(&plugins);
    assert!(leaves_the_worker(move || {
        assert!(!price(&priced, &model, "a").fell_back);
    }));
    assert_eq!(failures(&plugins, "deadline"), 0);
}

#[test]
fn a_slow_task_leaves_the_worker_to_the_other_requests() {
    let stand = TestHost::new();
    let world = World::TaskSchema;
    let mut spec = stand.spec("slow", world, &Wat::of(world).prepare(SLOW));
    spec.limits.deadline_ms = Some(500);
    let plugins = Arc::new(stand.load(&spec).unwrap());
    let model = user_of(&spec);
    let body = Bytes::from_static(b"{}");
    let prepare = {
        let (plugins, model) = (Arc::clone(&plugins), Arc::clone(&model));
        move || {
            let mut session = calling("a", |caller| plugins.task(&model).begin(caller));
            let input = TaskInput {
                model: "m",
                content_type: "application/json",
                body: &body,
                is_read: false,
                is_checked: false,
                attributes: Vec::new(),
            };
            session.prepare(input).unwrap();
        }
    };
    // The first call tells that it is slow; the only worker is then left at once.
    prepare();
    assert!(leaves_the_worker(prepare));
}

#[test]
fn a_guest_that_another_thread_has_kept_is_used_before_one_is_made() {
    let stand = TestHost::new();
    let world = World::BillingFormula;
    let spec = stand.spec("p", world, &Wat::of(world));
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let call = |account: &str| assert!(!price(&plugins, &model, account).fell_back);
    let live = || stand.host.counts().instances_live;
    call("a");
    for _ in 0..3 {
        std::thread::scope(|scope| {
            scope.spawn(|| call("a"));
        });
        assert_eq!(live(), 1);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| call("b"));
    });
    call("b");
    assert_eq!(live(), 2, "another account's guest is not used");
}

#[test]
fn the_bounds_of_waiting_guests_hold_for_all_threads_together() {
    let stand = TestHost::new();
    let world = World::BillingFormula;
    let spec = stand.spec("p", world, &Wat::of(world));
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    stand.host.allow_warm_mib(1);
    let (mut warm, mut live) = (0, 0);
    for account in 0..40 {
        std::thread::scope(|scope| {
            let account = format!("account-{account}");
            let (plugins, model) = (&plugins, &model);
            scope.spawn(move || price(plugins, model, &account));
        });
        let counts = stand.host.counts();
        assert!(counts.warm_bytes <= 1 << 20, "{}", counts.warm_bytes);
        warm = warm.max(counts.warm_bytes);
        live = live.max(counts.instances_live);
    }
    assert!(warm > 900 << 10 && live <= 13, "{warm} {live}");
    stand.host.expire_guests_at(Millis(1 << 40));
    let counts = stand.host.counts();
    assert_eq!((counts.instances_live, counts.warm_bytes), (0, 0));
}
