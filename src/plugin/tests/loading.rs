//! Loading: what is refused and how it is said, what is reused, what stands in, what is cached.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::guests::{ONE, Wat};
use super::stand::{BUILTIN_PRICE, TestHost, model, price, rank, user_of};
use crate::plugin::{
    Host, HostError, HostSettings, InstancePolicy, PluginSnapshot, PluginSpec, RankMode, World,
};

fn wrong(stand: &TestHost, spec: &PluginSpec) -> Vec<(String, String)> {
    let problems = stand.load(spec).err().expect("a problem");
    problems.into_iter().map(|p| (p.key, p.message)).collect()
}

fn good() -> Wat {
    Wat::of(World::BillingFormula)
}

/// A charge of so many neurons.
fn charging(neurons: u32) -> Wat {
    good().price(&ONE.replace("(f64.const 1)", &format!("(f64.const {neurons})")))
}

#[test]
fn a_digest_is_required_and_must_be_that_of_the_file() {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", World::BillingFormula, &good());
    let digest = hex::encode(Sha256::digest(fs::read(&spec.file).unwrap()));
    spec.dev = false;
    let problems = wrong(&stand, &spec);
    assert_eq!(problems[0].0, "plugins[0].sha256");
    assert!(problems[0].1.contains(&digest));
    spec.sha256 = Some("00".repeat(32).into());
    assert!(wrong(&stand, &spec)[0].1.contains("not the one meant"));
    spec.sha256 = Some(digest.to_uppercase().into());
    assert!(stand.load(&spec).is_ok());
}

#[test]
fn a_file_that_is_no_plugin_of_its_world_is_refused_with_what_to_do() {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", World::BillingFormula, &good());
    spec.world = World::RoutingPolicy;
    let problems = wrong(&stand, &PluginSpec { ..spec.clone() });
    assert!(
        problems[0].1.contains("it is a `billing-formula`"),
        "{problems:?}"
    );

    spec.world = World::BillingFormula;
    fs::write(&spec.file, b"not wasm").unwrap();
    assert!(wrong(&stand, &spec)[0].1.contains("not WebAssembly"));

    fs::File::create(&spec.file)
        .unwrap()
        .set_len(50 << 20)
        .unwrap();
    assert!(wrong(&stand, &spec)[0].1.contains("larger than 32 MiB"));

    fs::remove_file(&spec.file).unwrap();
    assert!(wrong(&stand, &spec)[0].1.contains("cannot read"));
}

#[test]
fn what_runs_is_told_with_its_moment_its_mode_and_its_instances() {
    let stand = TestHost::new();
    let mut spec = stand.spec("r", World::RoutingPolicy, &Wat::of(World::RoutingPolicy));
    let cached = stand.load(&spec).unwrap();
    let shown = |plugins: &PluginSnapshot| {
        let state = serde_json::to_value(&plugins.state()[0]).unwrap();
        (
            state["mode"].clone(),
            state["instance"].clone(),
            state["loaded_at"].clone(),
        )
    };
    let (mode, instance, loaded_at) = shown(&cached);
    assert_eq!((mode, instance), (json!("cached"), json!("warm")));
    assert!(loaded_at.as_str().unwrap().ends_with('Z'), "{loaded_at}");

    // The time of its calls is not a part of the revision.
    spec.mode = RankMode::PerRequest;
    let asked = stand
        .host
        .load(&cached, std::slice::from_ref(&spec), &[user_of(&spec)])
        .unwrap();
    assert_eq!(
        shown(&asked),
        (json!("per-request"), json!("warm"), loaded_at)
    );
    spec.instance = InstancePolicy::Fresh;
    let fresh = stand.load(&spec).unwrap();
    assert_eq!(shown(&fresh).1, json!("fresh"));

    let formula = stand.spec("p", World::BillingFormula, &good());
    assert_eq!(shown(&stand.load(&formula).unwrap()).0, json!(null));
}

#[test]
fn places_that_overlap_are_refused_with_what_to_do() {
    let stand = TestHost::new();
    // Two places, whose pointers and lengths stand at 2000.
    let describe = "(call $clear) (i32.store (i32.const 1056) (i32.const 2000)) (i32.store (i32.const 1060) (i32.const 2))
        (i32.store8 (i32.const 1064) (i32.const 1)) (i32.const 1024)";
    let wanting = |second: &str| {
        let data = format!(
            "(data (i32.const 2000) \"\\b8\\0b\\00\\00\\09\\00\\00\\00\\f4\\0b\\00\\00\\{:02x}\\00\\00\\00\")
             (data (i32.const 3000) \"/messages\") (data (i32.const 3060) \"{second}\")",
            second.len()
        );
        Wat::of(World::TaskSchema).more(&data).describe(describe)
    };
    for second in ["/messages", "/messages/0/content", ""] {
        let spec = stand.spec("t", World::TaskSchema, &wanting(second));
        let problems = wrong(&stand, &spec);
        assert_eq!(problems[0].0, "plugins[0].file");
        assert!(
            problems[0].1.contains("places in `wants` overlap"),
            "{problems:?}"
        );
    }
    let spec = stand.spec("t", World::TaskSchema, &wanting("/messagesx"));
    assert!(stand.load(&spec).is_ok());
}

#[test]
fn an_import_without_its_grant_is_refused() {
    let stand = TestHost::new();
    let imports =
        "(import \"infergate:host/tables@1.0.0\" \"get\" (func $get (param i32 i32 i32 i32)))";
    let spec = stand.spec("p", World::BillingFormula, &good().imports(imports));
    let problems = wrong(&stand, &spec);
    assert!(
        problems
            .iter()
            .any(|(key, why)| key == "plugins[0].grants" && why.contains("tables:<name>")),
        "{problems:?}"
    );
}

#[test]
fn a_table_is_attached_granted_and_looked_up() {
    let stand = TestHost::new();
    let imports =
        "(import \"infergate:host/tables@1.0.0\" \"get\" (func $get (param i32 i32 i32 i32)))";
    // Charges the first digit of the value of the key `k`.
    let body = "(local $v f64) (call $get (i32.const 0) (i32.const 3000) (i32.const 1) (i32.const 2000))
        (local.set $v (f64.convert_i32_u (i32.sub (i32.load8_u (i32.load (i32.const 2004))) (i32.const 48))))
        (call $clear) (f64.store (i32.const 1032) (local.get $v)) (f64.store (i32.const 1040) (local.get $v))
        (i32.const 1024)";
    let wat = good()
        .imports(imports)
        .more("(data (i32.const 3000) \"k\")")
        .price(body);
    let mut spec = stand.spec("p", World::BillingFormula, &wat);
    let table = stand.folder.path().join("prices.json");
    fs::write(&table, r#"{"k": 7}"#).unwrap();
    spec.tables = [(Arc::from("prices"), table.clone())].into();
    let problems = wrong(&stand, &spec);
    assert!(
        problems
            .iter()
            .any(|(key, _)| key == "plugins[0].tables.prices"),
        "{problems:?}"
    );
    spec.grants = vec!["tables:prices".into()];
    let first = stand.load(&spec).unwrap();
    assert_eq!(price(&first, &user_of(&spec), "a").charge.total, 7.0);

    fs::write(&table, r#"{"k": 9}"#).unwrap();
    let next = stand
        .host
        .load(&first, std::slice::from_ref(&spec), &[user_of(&spec)])
        .unwrap();
    assert_eq!(price(&next, &user_of(&spec), "a").charge.total, 9.0);
    assert_eq!(
        price(&first, &user_of(&spec), "a").charge.total,
        7.0,
        "one version a revision"
    );
}

#[test]
fn a_configure_that_says_no_names_the_setting() {
    let stand = TestHost::new();
    // One problem: path "/round" (6 bytes), message "no" (2 bytes).
    let body = "(i32.store8 (i32.const 1024) (i32.const 1))
        (i32.store (i32.const 1028) (i32.const 2000)) (i32.store (i32.const 1032) (i32.const 1))
        (i32.store (i32.const 2000) (i32.const 3000)) (i32.store (i32.const 2004) (i32.const 6))
        (i32.store (i32.const 2008) (i32.const 3006)) (i32.store (i32.const 2012) (i32.const 2))
        (i32.const 1024)";
    let wat = good()
        .configure(body)
        .more("(data (i32.const 3000) \"/roundno\")");
    let spec = stand.spec("p", World::BillingFormula, &wat);
    assert_eq!(
        wrong(&stand, &spec),
        [("plugins[0].settings.round".into(), "no".into())]
    );
}

#[test]
fn names_are_resolved_to_plugins_then_to_what_is_built_in() {
    let stand = TestHost::new();
    let spec = stand.spec("p", World::BillingFormula, &good());
    let load = |models: &[Arc<infergate_core::model::ModelSpec>]| {
        stand.host.load(
            &PluginSnapshot::default(),
            std::slice::from_ref(&spec),
            models,
        )
    };
    let fine = model(
        json!({ "plugins": { "task": "translation", "billing": "neurons", "routing": "latency" } }),
    );
    assert!(load(&[fine]).is_ok());
    for (plugins, key) in [
        (json!({ "task": "p" }), "models[0].plugins.task"),
        (json!({ "billing": "nobody" }), "models[0].plugins.billing"),
        (json!({ "routing": "neurons" }), "models[0].plugins.routing"),
    ] {
        let problems = load(&[model(json!({ "plugins": plugins }))]).err().unwrap();
        assert_eq!(problems[0].key, key);
    }
    let odd = model(json!({ "plugins": { "routing": "latency" }, "routing": { "no_such": 1 } }));
    assert_eq!(
        load(&[odd]).err().unwrap()[0].key,
        "models[0].routing.no_such"
    );
}

#[test]
fn an_optional_plugin_that_does_not_load_leaves_what_is_built_in() {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", World::BillingFormula, &good().configure("unreachable"));
    spec.optional = true;
    let plugins = stand.load(&spec).unwrap();
    assert_eq!(plugins.warnings().len(), 1);
    let priced = price(&plugins, &user_of(&spec), "a");
    assert_eq!(priced.charge.total, BUILTIN_PRICE);
    assert!(!priced.fell_back, "there is no plugin to fall back from");
}

#[test]
fn an_optional_plugin_that_does_not_load_again_keeps_the_revision_that_runs() {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", World::BillingFormula, &charging(3));
    spec.optional = true;
    let first = stand.load(&spec).unwrap();
    assert_eq!(&*first.changed_since(&PluginSnapshot::default())[0], "p");
    let load = |former: &PluginSnapshot, spec: &PluginSpec| {
        stand
            .host
            .load(former, std::slice::from_ref(spec), &[user_of(spec)])
            .unwrap()
    };
    let charged = |plugins: &PluginSnapshot| price(plugins, &user_of(&spec), "a").charge.total;

    fs::write(&spec.file, charging(4).configure("unreachable").bytes()).unwrap();
    let kept = load(&first, &spec);
    assert_eq!(kept.warnings().len(), 1);
    assert_eq!(charged(&kept), 3.0, "it does not start");
    fs::write(&spec.file, b"not wasm").unwrap();
    let kept = load(&kept, &spec);
    assert_eq!(charged(&kept), 3.0, "it is no plugin");
    let mut other = spec.clone();
    other.settings = json!({ "a": 1 }).as_object().unwrap().clone();
    fs::remove_file(&spec.file).unwrap();
    let kept = load(&kept, &other);
    assert_eq!(
        charged(&kept),
        3.0,
        "it is gone, and its settings are others"
    );
    assert!(kept.changed_since(&first).is_empty());

    fs::write(&spec.file, charging(5).bytes()).unwrap();
    let next = load(&kept, &spec);
    assert!(next.warnings().is_empty());
    assert_eq!(charged(&next), 5.0);
    assert_eq!(next.changed_since(&kept), [Arc::from("p")]);
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_and_not_waited_for() {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", World::BillingFormula, &good());
    let pipe = stand.folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    spec.tables = [(Arc::from("prices"), pipe.clone())].into();
    spec.grants = vec!["tables:prices".into()];
    assert!(wrong(&stand, &spec)[0].1.contains("no regular file"));
    spec.tables.clear();
    spec.grants.clear();
    spec.file = pipe;
    assert!(wrong(&stand, &spec)[0].1.contains("no regular file"));
}

#[test]
fn a_failed_load_leaves_the_former_plugins_and_a_same_one_is_reused() {
    let stand = TestHost::new();
    let spec = stand.spec("p", World::BillingFormula, &charging(3));
    let first = stand.load(&spec).unwrap();
    assert_eq!(price(&first, &user_of(&spec), "a").charge.total, 3.0);
    let same = stand
        .host
        .load(&first, std::slice::from_ref(&spec), &[user_of(&spec)])
        .unwrap();
    assert_eq!(
        same.state()[0].calls,
        1,
        "the same revision, with what it has counted"
    );

    fs::write(&spec.file, charging(4).configure("unreachable").bytes()).unwrap();
    assert!(
        stand
            .host
            .load(&same, std::slice::from_ref(&spec), &[user_of(&spec)])
            .is_err()
    );
    assert_eq!(price(&same, &user_of(&spec), "a").charge.total, 3.0);

    fs::write(&spec.file, charging(5).bytes()).unwrap();
    let next = stand
        .host
        .load(&same, std::slice::from_ref(&spec), &[user_of(&spec)])
        .unwrap();
    assert_eq!(price(&next, &user_of(&spec), "a").charge.total, 5.0);
    assert_eq!(
        price(&same, &user_of(&spec), "a").charge.total,
        3.0,
        "the former snapshot serves on"
    );
}

#[test]
fn a_call_that_fails_in_a_new_revision_is_answered_by_the_last_good_one() {
    let stand = TestHost::new();
    let spec = stand.spec("p", World::BillingFormula, &charging(3));
    let user = [user_of(&spec)];
    let first = stand.load(&spec).unwrap();
    price(&first, &user[0], "a");
    fs::write(&spec.file, good().price("unreachable").bytes()).unwrap();
    let bad = stand
        .host
        .load(&first, std::slice::from_ref(&spec), &user)
        .unwrap();
    for turn in 0..20 {
        let priced = price(&bad, &user[0], ["a", "b"][turn % 2]);
        assert_eq!(priced.charge.total, 3.0);
        assert_eq!(priced.uses[0].plugin.sha256, first.state()[0].sha256);
        assert!(!priced.fell_back);
    }
    let states = bad.state();
    let broken = states.iter().find(|state| state.role == "active").unwrap();
    assert_eq!(broken.failures["trapped"], 5, "then its breaker is open");
    assert_eq!(broken.failures["unavailable"], 15);

    // The next one has the good one behind it, not the bad one.
    fs::write(
        &spec.file,
        good()
            .price("(i32.div_u (i32.const 1) (i32.const 0))")
            .bytes(),
    )
    .unwrap();
    let worse = stand
        .host
        .load(&bad, std::slice::from_ref(&spec), &user)
        .unwrap();
    assert_eq!(price(&worse, &user[0], "a").charge.total, 3.0);
}

#[test]
fn only_a_revision_with_a_good_record_that_is_not_barred_stands_in() {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", World::BillingFormula, &charging(3));
    let user = [user_of(&spec)];
    let never_asked = stand.load(&spec).unwrap();
    let asked = stand.load(&spec).unwrap();
    price(&asked, &user[0], "a");
    fs::write(&spec.file, good().price("unreachable").bytes()).unwrap();
    let priced = |former: &PluginSnapshot, spec: &PluginSpec| {
        let bad = stand.host.load(former, std::slice::from_ref(spec), &user);
        price(&bad.unwrap(), &user[0], "a").charge.total
    };
    assert_eq!(priced(&asked, &spec), 3.0);
    assert_eq!(priced(&never_asked, &spec), BUILTIN_PRICE);
    spec.barred_sha256 = vec![asked.state()[0].sha256.clone()];
    assert_eq!(priced(&asked, &spec), BUILTIN_PRICE);
    spec.barred_sha256.clear();
    spec.last_good = false;
    assert_eq!(priced(&asked, &spec), BUILTIN_PRICE);
}

#[test]
fn a_models_routing_is_merged_over_the_settings_and_is_a_revision_of_its_own() {
    let stand = TestHost::new();
    // Answers the candidate whose id is the length of its settings.
    let world = World::RoutingPolicy;
    let wat = Wat::of(world)
        .configure("(global.set $secret (i64.extend_i32_u (local.get $len))) (i32.store8 (i32.const 1024) (i32.const 0)) (i32.const 1024)")
        .rank("(i32.store (i32.const 2000) (i32.wrap_i64 (global.get $secret))) (i32.store8 (i32.const 1024) (i32.const 0))
               (i32.store (i32.const 1028) (i32.const 2000)) (i32.store (i32.const 1032) (i32.const 1)) (i32.const 1024)");
    let mut spec = stand.spec("p", world, &wat);
    spec.settings = json!({ "a": 1 }).as_object().unwrap().clone();
    let plain = model(json!({ "id": "plain", "plugins": { "routing": "p" } }));
    let own = model(json!({ "id": "own", "plugins": { "routing": "p" }, "routing": { "b": 22 } }));
    let models = [plain.clone(), own.clone()];
    let plugins = stand
        .host
        .load(&PluginSnapshot::default(), &[spec], &models)
        .unwrap();
    assert_eq!(
        rank(&plugins, &plain, 32).choices[0].id,
        r#"{"a":1}"#.len() as u32
    );
    assert_eq!(
        rank(&plugins, &own, 32).choices[0].id,
        r#"{"a":1,"b":22}"#.len() as u32
    );
    assert_eq!(plugins.state().len(), 2);
}

#[test]
fn guests_of_any_version_of_the_major_load_side_by_side_and_unknown_exports_are_left_alone() {
    let stand = TestHost::new();
    let trap = "(func (export \"init\") unreachable)";
    let old = stand.spec("old", World::BillingFormula, &charging(3));
    let new = stand.spec(
        "new",
        World::BillingEstimator,
        &Wat::of(World::BillingEstimator).version("1.1.0"),
    );
    let models = [
        model(json!({ "id": "a", "plugins": { "billing": "old" } })),
        model(json!({ "id": "b", "plugins": { "billing": "new" } })),
    ];
    let plugins = stand
        .host
        .load(&PluginSnapshot::default(), &[old, new], &models)
        .unwrap();
    assert_eq!(price(&plugins, &models[0], "x").charge.total, 3.0);
    assert_eq!(price(&plugins, &models[1], "x").charge.total, 1.0);

    let odd = stand.spec("odd", World::BillingFormula, &charging(3).more(trap));
    assert!(stand.load(&odd).is_ok());
    let major = stand.spec("major", World::BillingFormula, &good().version("2.0.0"));
    assert!(wrong(&stand, &major)[0].1.contains("speaks version 1"));
}

#[test]
fn fixtures_beside_a_plugin_are_its_admission() {
    let stand = TestHost::new();
    let spec = stand.spec("p", World::BillingFormula, &charging(3));
    let folder = stand.folder.path().join("p.tests");
    fs::create_dir(&folder).unwrap();
    let fixture = |total: f64| {
        json!({ "hook": "price",
            "args": { "tariff": { "cost-per-infer": 1.0, "coefficients": [], "criteria": [] },
                      "usage": { "model": "m", "trust": "trust", "outcome": "completed", "streamed": false,
                                 "metrics": [], "queue-ms": 0, "infer-ms": 0 } },
            "expect": { "total": total } })
    };
    fs::write(folder.join("one.json"), fixture(3.0).to_string()).unwrap();
    let plugins = stand.load(&spec).unwrap();
    assert!(plugins.state()[0].fixture_p99_us > 0);
    assert!(plugins.state()[0].peak_memory_bytes >= 65_536);
    fs::write(folder.join("two.json"), fixture(4.0).to_string()).unwrap();
    let problems = wrong(&stand, &spec);
    assert!(
        problems[0].1.contains("`two`") && problems[0].1.contains("/total"),
        "{problems:?}"
    );
}

fn cached(folder: &TempDir) -> Result<Arc<Host>, HostError> {
    Host::start(HostSettings {
        cache_dir: Some(folder.path().to_owned()),
        slots: 4,
        ..HostSettings::default()
    })
}

#[test]
fn compiled_code_is_kept_and_a_changed_byte_is_found_deleted_and_compiled_anew() {
    let stand = TestHost::new();
    let spec = stand.spec("p", World::BillingFormula, &charging(3));
    let folder = TempDir::new().unwrap();
    let load = || {
        let host = cached(&folder).unwrap();
        let plugins = host
            .load(
                &PluginSnapshot::default(),
                std::slice::from_ref(&spec),
                &[user_of(&spec)],
            )
            .unwrap();
        assert_eq!(price(&plugins, &user_of(&spec), "a").charge.total, 3.0);
        let counts = host.counts();
        (
            counts.cache_hits,
            counts.cache_misses,
            counts.cache_rejected,
        )
    };
    let file = || {
        let files = fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        files
            .into_iter()
            .find(|path| path.extension().is_some_and(|e| e == "compiled"))
            .unwrap()
    };
    assert_eq!(load(), (0, 1, 0));
    assert_eq!(load(), (1, 0, 0));
    let whole = fs::read(file()).unwrap();
    for at in [0, 9, 50, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(file(), &changed).unwrap();
        assert_eq!(load(), (0, 0, 1), "byte {at}");
        assert_eq!(load(), (1, 0, 0), "compiled and kept anew");
    }
    fs::write(file(), &whole[..20]).unwrap();
    assert_eq!(load(), (0, 0, 1), "cut short");
    // Another secret makes all files another's.
    fs::remove_file(folder.path().join("secret")).unwrap();
    assert_eq!(load(), (0, 0, 1));
    let mode = fs::metadata(folder.path().join("secret"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_cache_directory_that_others_may_write_is_refused_at_start() {
    let folder = TempDir::new().unwrap();
    for mode in [0o777, 0o770, 0o702] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let refused = cached(&folder).err().unwrap().to_string();
        assert!(refused.contains("others may write"), "{refused}");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(cached(&folder).is_ok());
}

#[test]
fn a_gateway_without_wasm_plugins_starts_no_engine() {
    let stand = TestHost::new();
    let plugins = stand
        .host
        .load(&PluginSnapshot::default(), &[], &[model(json!({}))])
        .unwrap();
    assert!(plugins.state().is_empty());
    assert_eq!(stand.host.counts(), Default::default());
}
