//! Pages of metrics as servers send them, and pages that are none.
//!
//! Pages in `../pages`: `sglang.txt` is the example of SGLang's documentation, shortened. `vllm-v0.txt` is a
//! published page of engine V0, shortened, with another cache usage. `vllm-v1.txt` is put together from published
//! excerpts of engine V1 and the names in its source. `sglang-ranks.txt` has names and labels of SGLang's
//! schedulers, two engines of two ranks; its figures are made up.

use infergate_core::routing::ServerLoad;
use infergate_core::routing::affinity::lora_number;

use super::{ADAPTERS_MAX, ENGINES_MAX, ServerMetrics};
use crate::upstream::backends::backend;

const VLLM_V0: &str = include_str!("../pages/vllm-v0.txt");
const VLLM_V1: &str = include_str!("../pages/vllm-v1.txt");
const SGLANG: &str = include_str!("../pages/sglang.txt");
const SGLANG_RANKS: &str = include_str!("../pages/sglang-ranks.txt");

fn report(kind: &str, page: &str) -> Option<ServerMetrics> {
    let probe = backend(kind).unwrap().probe;
    assert_eq!(probe.path, "/health");
    (probe.metrics.unwrap().read)(page)
}

fn load(running: u32, waiting: u32, kv_cache_permille: u16) -> ServerLoad {
    ServerLoad {
        running,
        waiting,
        kv_cache_permille,
    }
}

fn numbers<const N: usize>(names: [&str; N]) -> Vec<u32> {
    let mut numbers = names.map(lora_number).to_vec();
    numbers.sort_unstable();
    numbers
}

/// A page of vLLM with one more set of adapters, reported after the others.
fn with_adapters(labels: &str) -> String {
    format!("{VLLM_V1}vllm:lora_requests_info{{{labels}}} 1.7886264600000000e+09\n")
}

#[test]
fn the_load_of_each_version_is_read() {
    for (kind, page, expected) in [
        ("vllm", VLLM_V0, load(3, 2, 27)),
        ("vllm", VLLM_V1, load(24, 72, 412)),
        ("sglang", SGLANG, load(162, 2826, 280)),
    ] {
        let report = report(kind, page).unwrap();
        assert_eq!(report.load, expected, "{page}");
        assert_eq!(report.adapters, [0; 0], "{page}");
    }
}

#[test]
fn adapters_are_those_of_the_latest_report() {
    let page = with_adapters(
        r#"max_lora="2",running_lora_adapters="sql,chat",waiting_lora_adapters="chat""#,
    );
    let adapters = report("vllm", &page).unwrap().adapters;
    assert_eq!(adapters, numbers(["sql", "chat"]));
    let idle = page.replace("1.7886264577368872e+09", "1.7886264699999999e+09");
    assert_eq!(report("vllm", &idle).unwrap().adapters, [0; 0]);
}

#[test]
fn adapters_without_a_time_are_not_taken_for_present() {
    let set =
        r#"vllm:lora_requests_info{running_lora_adapters="old",waiting_lora_adapters=""} 1.0"#;
    let page = format!("{VLLM_V0}{set}\n");
    assert_eq!(report("vllm", &page).unwrap().adapters, [0; 0]);
}

#[test]
fn engines_are_summed_and_ranks_of_one_engine_counted_once() {
    let engine = |engine| VLLM_V1.replace("engine=\"0\"", &format!("engine=\"{engine}\""));
    let page = engine(0) + &engine(1).replace("} 0.4127906976744186", "} 0.7127906976744186");
    assert_eq!(report("vllm", &page).unwrap().load, load(48, 144, 712));
    assert_eq!(
        report("sglang", SGLANG_RANKS).unwrap().load,
        load(3, 4, 970)
    );
}

#[test]
fn engines_beyond_the_bound_are_left_out() {
    let series = |engine| format!("vllm:num_requests_running{{engine=\"{engine}\"}} 1.0\n");
    let page: String = (0..2 * ENGINES_MAX).map(series).collect();
    let running = u32::try_from(ENGINES_MAX).unwrap();
    assert_eq!(report("vllm", &page).unwrap().load, load(running, 0, 0));
}

#[test]
fn labels_with_escapes_braces_and_spaces_are_read() {
    let odd = r#"note="a \"quoted\" } value, {x}=\\",model_name="C:\\m",engine = "0""#;
    let page = format!(
        "\u{20}vllm:num_requests_running{{{odd},}} 5.0 1788626457000\r\n\
         vllm:num_requests_running {{{}}} 2\n\
         vllm:num_requests_waiting\t{{{odd}}}\t7 # a comment }} \n\
         vllm:num_requests_swapped 9\n",
        odd.replace("\"0\"", "\"1\""),
    );
    assert_eq!(report("vllm", &page).unwrap().load, load(7, 7, 0));
    let page = with_adapters(
        r#"running_lora_adapters="team \"a\"/sql, back\\slash",waiting_lora_adapters="two\nlines,é""#,
    );
    let adapters = report("vllm", &page).unwrap().adapters;
    let expected = ["team \"a\"/sql", "back\\slash", "two\nlines", "é"];
    assert_eq!(adapters, numbers(expected));
}

#[test]
fn adapters_beyond_the_bound_are_left_out() {
    let names: Vec<String> = (0..500).map(|name| format!("a{name}")).collect();
    let page = with_adapters(&format!("running_lora_adapters=\"{}\"", names.join(",")));
    let adapters = report("vllm", &page).unwrap().adapters;
    assert_eq!(adapters.len(), ADAPTERS_MAX);
}

#[test]
fn a_page_of_a_megabyte_is_read_to_its_end() {
    let histogram =
        "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"0.3\",model_name=\"m\"} 0.0\n";
    let page = histogram.repeat((1 << 20) / histogram.len()) + VLLM_V1;
    assert_eq!(report("vllm", &page).unwrap().load, load(24, 72, 412));
}

#[test]
fn a_page_of_something_else_says_nothing() {
    for page in [
        "",
        "ok",
        "<html>404</html>",
        "go_goroutines 148\n",
        r#"{"vllm:num_requests_running": 3}"#,
        "# HELP vllm:num_requests_running Number of requests.\n",
        "vllm:num_requests_running",
        "vllm:num_requests_running\n",
        "vllm:num_requests_running {",
        "vllm:num_requests_running{engine=\"0} 3\n",
        "vllm:num_requests_running{engine=\"0\"}\n",
        "vllm:num_requests_running_total 3\n",
        "ray_vllm:num_requests_running 3\n",
        SGLANG,
    ] {
        assert_eq!(report("vllm", page), None, "{page}");
    }
}

#[test]
fn odd_values_are_left_out() {
    let odd = "vllm:num_requests_running NaN\nvllm:num_requests_running{engine=\"1\"} -3\n\
               vllm:num_requests_waiting +Inf\nvllm:num_requests_waiting 1e300\n\
               vllm:num_requests_waiting{engine=\"1\"} 1\n\
               vllm:kv_cache_usage_perc 7\nvllm:lora_requests_info{running_lora_adapters=\"a 1\n";
    let report = report("vllm", odd).unwrap();
    assert_eq!(report.load, load(0, u32::MAX, 1000));
    assert_eq!(report.adapters, [0; 0]);
}
