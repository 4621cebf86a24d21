//! The task text: lines of different lengths, shared by each sampler.

use super::*;

const SAMPLERS: [&str; 4] = ["distributed", "load-balancing", "cost-balanced", "batch"];

/// Writes 200 lines of 1 to 94 characters, most of them short, of which 160 are trained on. Returns the file, and the
/// number of characters to be predicted.
fn text(name: &str) -> (PathBuf, f64) {
    let length = |line: usize| 1 + (line * 37 % 97).pow(3) / 97_usize.pow(2);
    let line = |line: usize| format!("{}\n", &"ab ".repeat(32)[..length(line)]);
    let file = folder(name);
    std::fs::write(&file, (0..200).map(line).collect::<String>()).unwrap();
    let trained = (0..200).filter(|line| line % 5 != 0);
    (file, trained.map(|line| length(line) + 1).sum::<usize>() as f64)
}

#[test]
fn each_sampler_trains_equal_replicas_and_balanced_ranks_have_fewer_tokens_to_wait_for() {
    let (file, all) = text("lines.txt");
    let mut at_random = 0.0;
    for sampler in SAMPLERS {
        let arguments = "--task text --ranks 2 --batch 4 --epochs 2 --transport thread";
        let report = report("text", &format!("{arguments} --sampler {sampler} --text '{}'", file.display()));
        assert_eq!((&report["replicas_identical"], &report["sampler"]), (&true.into(), &sampler.into()));
        assert_eq!(report["waiting"].as_array().unwrap().len(), 2);
        let lines = metrics("text");
        let first: Vec<Vec<f64>> = lines
            .iter()
            .filter(|line| line["event"] == "step" && line["epoch"] == 1)
            .map(|line| serde_json::from_value(line["tokens"].clone()).unwrap())
            .collect();
        let sum: f64 = first.iter().flatten().sum();
        let steps: f64 = first.iter().map(|ranks| ranks[0].max(ranks[1])).sum();
        match sampler {
            "distributed" => at_random = steps / sum,
            _ => assert!(steps / sum < 0.85 * at_random, "{sampler}: {first:?}"),
        }
        // A rank whose batches are fewer than the other's has lines left.
        assert!(
            if sampler == "batch" { sum <= all && sum > 0.8 * all } else { sum == all },
            "{sampler}: {sum}"
        );
        let epoch = lines.iter().find(|line| line["event"] == "epoch").unwrap();
        let gain = at_random / (steps / sum);
        assert!((epoch["gain"].as_f64().unwrap() - gain).abs() < 1e-9, "{sampler}: {epoch}");
        assert!(report["tokens_per_s"].as_f64().unwrap() > 0.0 && report["balance"].as_f64().unwrap() >= 1.0);
        let plot = std::fs::read_to_string(folder("text").join("plot.svg")).unwrap();
        assert!(plot.contains("tokens of each rank"), "{sampler}");
    }
    std::fs::remove_file(file).unwrap();
    clean("text");
}

#[test]
fn a_text_is_resumed_in_the_midst_of_an_epoch_by_the_same_sampler() {
    let (file, _) = text("resumed.txt");
    let common =
        format!("--task text --ranks 2 --batch 4 --every 15 --transport thread --text '{}'", file.display());
    for sampler in &SAMPLERS[1..] {
        let kept = ["whole", "parts"].map(|part| folder(&format!("text-{part}")));
        let run = |name: &str, at: usize, rest: &str| {
            let kept = kept[at].display();
            report(name, &format!("{common} --checkpoint '{kept}' --sampler {sampler} {rest}"));
            losses(name)
        };
        let whole = run("text-all", 0, "--epochs 4");
        run("text-part", 1, "--epochs 2");
        // The one before that of the end of the second epoch.
        std::fs::remove_dir_all(resume::newest(&kept[1])).unwrap();
        let rest = run("text-rest", 1, "--epochs 4 --resume");
        assert!(rest.len() < whole.len() && whole.ends_with(&rest), "{sampler}: {whole:?} {rest:?}");
        let other = if *sampler == "batch" { "distributed" } else { "batch" };
        let kept_parts = kept[1].display();
        let output = super::run(
            "text-other",
            &format!("{common} --checkpoint '{kept_parts}' --sampler {other} --resume"),
        );
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(err.contains(&format!("--sampler {sampler}, and now {other}")), "{err}");
        kept.iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
        ["text-all", "text-part", "text-rest"].into_iter().for_each(clean);
    }
    std::fs::remove_file(file).unwrap();
    clean("text-other");
}

#[test]
fn options_that_do_not_fit_the_task_are_refused() {
    refused(
        "--sampler batch",
        &[],
        "--sampler is for samples of different lengths, and those of digits are alike; add --task text",
    );
    refused("--character-time 5", &[], "--character-time is for samples of different lengths");
    refused("--task text --data digits.csv", &[], "name a text by --text");
    refused("--task text --text /dev/zero", &[], "cannot read /dev/zero: it is a pipe or a device");
    let empty = folder("empty.txt");
    std::fs::write(&empty, "\n\n").unwrap();
    refused(&format!("--task text --text '{}'", empty.display()), &[], "use a text of five lines or more");
    std::fs::remove_file(empty).unwrap();
    refused("--task text --character-time=-1", &[], "choose microseconds from 0 to 1000000");
    refused("--task text --batch 100", &[], "exceeds the 169 training samples");
}
