//! Advice on clusters with a known answer: a link so slow that only bytes count, and one so fast that nothing is left
//! to save.

use super::advice::{Advice, Advised, Border, Standing};
use super::candidate::Candidate;
use super::{AdviseOptions, report};
use crate::program::console::bytes;
use clap::{CommandFactory, Parser};
use hexagram::algorithms::Registry;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Advice on four ranks with a model of 400 KB, whose passes take 15 ms.
fn advised(link: &str, algorithms: &[&str]) -> Advice {
    let registry = Registry::built_in();
    let options = options(link);
    let mut candidates = vec![Candidate::reference(&registry).unwrap()];
    candidates.extend(Candidate::all(&registry, &algorithms.join(","), None).unwrap());
    let job = options.job.job().unwrap();
    Advice::of(&job, options.job.point().unwrap(), candidates).unwrap()
}

fn options(link: &str) -> AdviseOptions {
    let words = ["advise", "--ranks=4", "--hosts=4", "--link", link, "--model", model().to_str().unwrap()];
    AdviseOptions::parse_from(words)
}

fn model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("hexagram-advise-{}", std::process::id()));
        std::fs::write(&path, "first 65536 6\nsecond 32768 4\n").unwrap();
        path
    })
}

#[test]
fn the_command_line_has_each_option_once() {
    AdviseOptions::command().debug_assert();
}

/// 1.5 · 400 KB in 15 ms are 320 Mbit/s: at 4 Mbit/s a step is communication, and eight bits save three quarters of it.
#[test]
fn on_a_slow_link_what_sends_less_pays_by_as_much() {
    let advice = advised("4mbit,50us", &["bytegrad", "compressed-allreduce(codec=f16)", "local-sgd"]);
    let saved = |name: &str| {
        let found = advice.others.iter().find(|one| one.name() == name);
        found.unwrap().saved
    };
    assert!((saved("bytegrad") - 0.75).abs() < 0.02, "{}", saved("bytegrad"));
    assert!((saved("local-sgd") - 0.75).abs() < 0.02, "{}", saved("local-sgd"));
    let verdict = advice.verdict();
    assert!(
        advice.compression_pays() && verdict[0].starts_with("Compression pays here: `bytegrad`"),
        "{verdict:?}"
    );
    assert!(verdict[1].contains("`local-sgd`") && verdict[1].contains("more errors"), "{verdict:?}");
    // The fastest comes first.
    assert!(advice.others.windows(2).all(|pair| pair[0].saved >= pair[1].saved));
}

#[test]
fn on_a_fast_link_nothing_pays_and_slower_ones_are_named() {
    let advice = advised("40gbit,1us", &["bytegrad", "local-sgd"]);
    let verdict = advice.verdict();
    assert!(!advice.compression_pays(), "{verdict:?}");
    assert!(
        verdict[0].starts_with("Compression does not pay here: the fastest with it, `bytegrad`"),
        "{verdict:?}"
    );
    assert!(verdict[1].starts_with("No other algorithm in full precision pays"), "{verdict:?}");
    assert!(advice.others.iter().all(|one| one.pays_up_to.is_none_or(|border| border.pays < 40e9)));
    assert!(advice.others.iter().all(|one| advice.standing(one) == Standing::SavesTooLittle));
}

/// The bandwidth is the last of the ladder at which an algorithm saves 5 %, as simulations of both sides of it show.
#[test]
fn what_is_said_to_pay_up_to_a_bandwidth_pays_there_and_not_above() {
    let border = |link: &str| advised(link, &["bytegrad"]).others[0].pays_up_to.unwrap();
    let Border { pays, next } = border("1gbit,50us");
    let saved = |bits: f64| advised(&format!("{bits}bit,50us"), &["bytegrad"]).others[0].saved;
    assert!((100e6..32e9).contains(&pays), "{pays}");
    assert!(saved(pays) >= 0.05 && saved(next.unwrap()) < 0.05, "{pays}");
    // It depends on the cluster, not on the link's own bandwidth.
    assert_eq!(border("1700mbit,50us"), border("3mbit,50us"));
}

/// Every algorithm is recommended, or a reason is given.
#[test]
fn what_is_not_recommended_has_a_reason() {
    let names = ["bytegrad", "compressed-allreduce(codec=f16)", "local-sgd", "d-psgd", "qadam", "loco"];
    let advice = advised("4mbit,50us", &names);
    let standing = |name: &str| {
        let found = advice.others.iter().find(|one| one.name() == name);
        advice.standing(found.unwrap())
    };
    let best = advice.recommended(Advised::is_compressed).unwrap().name();
    assert_eq!(standing(best), Standing::Recommended);
    assert_eq!(standing("compressed-allreduce(codec=f16)"), Standing::Untrained);
    assert_eq!(standing("qadam"), Standing::MoreErrors);
    let recommended = advice.others.iter().filter(|one| advice.standing(one) == Standing::Recommended);
    assert_eq!(recommended.count(), 2, "one in low precision, one in full");
    let slower = Standing::Slower(best.to_owned());
    assert!(["bytegrad", "loco"].into_iter().any(|name| standing(name) == slower));
}

/// Four ranks on two hosts send more than crosses between hosts.
#[test]
fn bytes_to_other_hosts_stand_next_to_all_bytes() {
    let mut options = options("4mbit,50us");
    options.job.hosts = 2;
    let registry = Registry::built_in();
    let mut candidates = vec![Candidate::reference(&registry).unwrap()];
    candidates.extend(Candidate::all(&registry, "bytegrad", None).unwrap());
    let advice = options.advice(&options.job.job().unwrap(), candidates).unwrap();
    let figures = &advice.reference.figures;
    assert!(figures.network_bytes > 0.0 && figures.network_bytes < figures.bytes, "{figures:?}");
    let row = report::table(&options, &advice);
    let cells = format!("| {} | {} |", bytes(figures.bytes as u64), bytes(figures.network_bytes as u64));
    assert!(row.contains(&cells), "{row}");
}

/// Messages of every step against fewer of them: between hosts a second apart their number counts, at every
/// bandwidth.
#[test]
fn what_pays_at_the_highest_bandwidth_tried_pays_up_to_at_least_that() {
    let advice = advised("1gbit,1s", &["local-sgd"]);
    let border = advice.others[0].pays_up_to.unwrap();
    assert_eq!(border, Border { pays: 500e9, next: None });
    let options = options("1gbit,1s");
    assert!(report::table(&options, &advice).contains("| at least 500gbit |"));
    assert!(advice.verdict().concat().contains("up to at least 500gbit"), "{:?}", advice.verdict());
    let result = &report::object(&options, &advice)["results"][0];
    assert_eq!((&result["pays_up_to_bps"], &result["stops_paying_at_bps"]), (&500e9.into(), &Value::Null));
}

#[test]
fn the_cluster_that_is_told_of_is_that_of_the_file() {
    let folder = std::env::temp_dir().join(format!("hexagram-advise-cluster-{}", std::process::id()));
    std::fs::write(&folder, "hosts 2 ranks=2\nhosts 1 link=100mbit,1ms\n").unwrap();
    let model = model().to_str().unwrap();
    let words = ["advise", "--link=1gbit,50us", "--model", model, "--topology", folder.to_str().unwrap()];
    let options = AdviseOptions::parse_from(words);
    let registry = Registry::built_in();
    let mut candidates = vec![Candidate::reference(&registry).unwrap()];
    candidates.extend(Candidate::all(&registry, "bytegrad", None).unwrap());
    let advice = options.advice(&options.job.job().unwrap(), candidates).unwrap();
    let table = report::table(&options, &advice);
    assert!(table.contains("5 ranks of 3 hosts") && table.contains("--link, which is 1gbit,50us"), "{table}");
    let object = report::object(&options, &advice);
    assert_eq!((&object["ranks"], &object["hosts"]), (&5.into(), &3.into()));
    assert_eq!((&object["arguments"]["ranks"], &object["arguments"]["shape"]), (&Value::Null, &Value::Null));
    assert_eq!(object["arguments"]["topology"], folder.to_str().unwrap());
    assert_eq!(object["arguments"]["overlap"], "backward");
    std::fs::remove_file(folder).unwrap();
}

#[test]
fn the_object_has_what_the_table_has() {
    let advice = advised("4mbit,50us", &["bytegrad", "compressed-allreduce(codec=f16)"]);
    let options = options("4mbit,50us");
    let object = report::object(&options, &advice);
    let results = object["results"].as_array().unwrap();
    assert_eq!((results[0]["algorithm"].as_str(), results.len()), (Some("bytegrad"), 2));
    assert_eq!(results[0]["bandwidth_bps"], 4e6);
    assert!(results[0]["errors"]["like"]["above_points"].is_number());
    assert_eq!(results[1]["errors"], Value::Null, "the suite has not run it with this codec");
    assert_eq!(object["reference"]["algorithm"], "gradient-allreduce");
    let table = report::table(&options, &advice);
    assert!(table.contains("| `bytegrad` | ☴ |") && table.contains("4 ranks of 4 hosts"), "{table}");
    for line in object["verdict"].as_array().unwrap() {
        assert!(table.contains(line.as_str().unwrap()), "{table}");
    }
}
