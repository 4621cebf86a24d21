//! Checkpoints of the training program: resumed, refused, not saved.

use super::*;

#[test]
fn a_resumed_run_takes_the_steps_of_one_that_was_not_interrupted() {
    // The checkpoint before that of the end of three epochs is in the midst of the third.
    // Three epochs of 29 steps end before a schedule of five does.
    let scheduled =
        "gradient-allreduce --optimizer adamw --weight-decay 0.1 --schedule cosine(warmup=20,steps=145)";
    for algorithm in ["gradient-allreduce", "topk-ef", "diloco", scheduled] {
        let kept = ["whole", "parts"].map(|part| folder(&format!("kept-{part}")));
        let run = |name: &str, at: usize, rest: &str| {
            let folder = kept[at].display();
            report(
                name,
                &format!("--algorithm {algorithm} --ranks 3 --every 25 --checkpoint '{folder}' {rest}"),
            )
        };
        let whole = run("whole", 0, "--epochs 5");
        run("part", 1, "--epochs 3");
        std::fs::remove_dir_all(newest(&kept[1])).unwrap();
        let resumed = run("rest", 1, "--epochs 5 --resume");
        let all = losses("whole");
        let rest = losses("rest");
        assert!(!rest.is_empty() && rest.len() < all.len(), "{} of {}", rest.len(), all.len());
        assert_eq!(all[all.len() - rest.len()..], rest, "{algorithm}");
        for field in ["test_accuracy", "final_loss", "optimizer"] {
            assert_eq!(whole[field], resumed[field], "{algorithm}");
        }
        if algorithm == scheduled {
            assert_eq!(whole["optimizer"], "adamw(weight_decay=0.1)");
            assert_eq!(rates("whole")[145 - rest.len()..], rates("rest"));
            assert!(rates("rest").is_sorted_by(|one, next| one > next));
        }
        kept.iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
        ["whole", "part", "rest"].into_iter().for_each(clean);
    }
}

#[test]
fn a_restarted_run_resumes_by_itself() {
    let kept = folder("restart-kept");
    let arguments =
        |epochs: usize| format!("--ranks 2 --every 25 --checkpoint '{}' --epochs {epochs}", kept.display());
    let whole = report("restart-whole", &arguments(3));
    for variable in ["HEXAGRAM_RESTART", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"] {
        std::fs::remove_dir_all(&kept).unwrap();
        run("restart-part", &arguments(2));
        // As if a rank had failed before the end.
        std::fs::remove_dir_all(newest(&kept)).unwrap();
        let mut restarted = command("restart-rest", &format!("{} --json", arguments(3)));
        let output = restarted.env(variable, "1").output().unwrap();
        assert!(output.status.success(), "{variable}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let rest: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        for field in ["test_accuracy", "final_loss"] {
            assert_eq!(whole[field], rest[field], "{variable}");
        }
        assert!(losses("restart-rest").len() < losses("restart-whole").len());
        ["restart-part", "restart-rest"].into_iter().for_each(clean);
    }
    std::fs::remove_dir_all(&kept).unwrap();
    clean("restart-whole");
}

#[test]
fn another_number_of_ranks_goes_on_after_a_restart_or_as_a_change() {
    let kept = folder("resize-kept");
    for algorithm in ["gradient-allreduce --schedule cosine(warmup=5)", "local-sgd(period=7)"] {
        let arguments = |ranks: usize, epochs: usize| {
            let kept = kept.display();
            format!(
                "--algorithm {algorithm} --ranks {ranks} --every 10 --checkpoint '{kept}' --epochs {epochs}"
            )
        };
        run("resize-part", &arguments(4, 1));
        std::fs::remove_dir_all(newest(&kept)).unwrap();
        let (good, text) = said("resize-no", &format!("{} --resume", arguments(2, 2)));
        assert!(!good && text.contains("is of 4 ranks, not 2"), "{text}");
        let mut restarted = command("resize-rest", &arguments(2, 2));
        let output = restarted.env("HEXAGRAM_RESTART", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("4 ranks, and now 2") || out.contains("4 ranks, and now 2"), "{text} {out}");
        let last = losses("resize-rest").last().copied().unwrap();
        assert!(last < 1.5, "{algorithm}: {last}");
        std::fs::remove_dir_all(newest(&kept)).unwrap();
        let (good, text) = said("resize-more", &format!("{} --resume --change", arguments(3, 2)));
        assert!(good, "{text}");
        std::fs::remove_dir_all(&kept).unwrap();
        ["resize-part", "resize-no", "resize-rest", "resize-more"].into_iter().for_each(clean);
    }
}

/// The newest checkpoint in a folder.
pub(crate) fn newest(folder: &Path) -> PathBuf {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).max().unwrap()
}

#[test]
fn the_end_of_a_training_is_saved_and_the_folder_is_checked_at_the_start() {
    let kept = folder("kept-end");
    let arguments = format!("--ranks 2 --epochs 1 --every 100000 --checkpoint '{}'", kept.display());
    let saved = report("end", &arguments);
    assert!(newest(&kept).ends_with("step-000044"), "{saved}");
    let said = |arguments: &str| said("end", arguments);
    let (good, text) = said(&format!("{arguments} --resume"));
    assert!(good && text.contains("step 44, the end of --epochs 1 already"), "{text}");
    let (good, text) = said(&arguments);
    assert!(!good && text.contains("resume from it, choose another directory"), "{text}");
    let (good, text) = said("--ranks 2 --epochs 1 --checkpoint /proc/nowhere");
    assert!(!good && text.contains("/proc/nowhere"), "{text}");
    std::fs::remove_dir_all(&kept).unwrap();
    clean("end");
}

/// Runs one training, successful or not; returns its standard error.
fn said(name: &str, arguments: &str) -> (bool, String) {
    let output = run(name, arguments);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_checkpoint_made_with_other_options_or_data_is_refused_unless_the_change_is_meant() {
    let kept = folder("kept-change");
    let other = folder("other.csv");
    // As many images as the built-in digits, but different ones.
    let row = |index: usize| format!("{}{}\n", format!("{},", index % 17).repeat(64), index % 10);
    std::fs::write(&other, (0..1797).map(row).collect::<String>()).unwrap();
    let common = format!("--ranks 2 --every 30 --checkpoint '{}'", kept.display());
    report("change", &format!("{common} --epochs 2"));
    // The last one before the end of the first epoch.
    std::fs::remove_dir_all(newest(&kept)).unwrap();
    let data = format!("--data '{}'", other.display());
    for (change, names) in [
        ("--lr 100", &["--lr 1, and now 100"][..]),
        ("--batch 8", &["--batch 16, and now 8"]),
        ("--seed 7 --lr 0.1", &["--lr 1, and now 0.1; with", "--seed 0, and now 7"]),
        (&data, &["--data 1437 samples of digest ", ", and now 1437 samples of digest "]),
    ] {
        let (good, text) = said("change", &format!("{common} --epochs 2 --resume {change}"));
        assert!(!good && text.contains("--resume --change"), "{change}: {text}");
        assert!(names.iter().all(|name| text.contains(name)), "{change}: {text}");
    }
    for fixed in ["--algorithm local-sgd", "--optimizer sgd(momentum=0.9)"] {
        let (good, text) = said("change", &format!("{common} --epochs 2 --resume --change {fixed}"));
        let name = fixed.split(' ').next().unwrap();
        assert!(!good && text.contains(&format!("{name} cannot change")), "{fixed}: {text}");
    }
    let (good, text) = said("change", &format!("{common} --epochs 2 --change"));
    assert!(!good && text.contains("--resume"), "{text}");
    // It takes effect, and the next checkpoint records it.
    let (good, text) = said("change", &format!("{common} --epochs 2 --resume --change --lr 1e-9"));
    assert!(good && text.contains("continues with a change: --lr 1, and now 0.000000001"), "{text}");
    let losses = losses("change");
    assert!(!losses.is_empty(), "{text}");
    let (good, text) = said("change", &format!("{common} --epochs 2 --resume"));
    assert!(!good && text.contains("--lr 0.000000001, and now 1"), "{text}");
    let after = report("change", &format!("{common} --epochs 3 --resume --change --lr 1 --seed 3"));
    assert_eq!(after["learning_rate"], 1.0);
    std::fs::remove_dir_all(&kept).unwrap();
    std::fs::remove_file(other).unwrap();
    clean("change");
}

#[test]
fn a_save_that_fails_ends_nothing_and_the_next_one_tries_again() {
    // It blocks the save of step 30, and is gone at the end of the training.
    for algorithm in ["gradient-allreduce", "diloco"] {
        let kept = folder("kept-failing");
        std::fs::create_dir_all(&kept).unwrap();
        std::fs::write(kept.join(".step-000030.partial"), "in the way").unwrap();
        let common = format!("--algorithm {algorithm} --ranks 2 --epochs 2");
        let output = run("failing", &format!("{common} --every 30 --checkpoint '{}' --json", kept.display()));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let warnings: Vec<&str> = text.lines().filter(|line| line.contains("is not saved")).collect();
        let [warning] = warnings[..] else { panic!("{text}") };
        for part in ["step 30 is not saved: rank ", "/.step-000030.partial: File exists", "tries again"] {
            assert!(warning.contains(part), "{part} in {warning}");
        }
        assert!(text.contains("1 of 3 saves failed, not the last one"), "{text}");
        let summary: Value =
            serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap();
        assert_eq!(summary["failed_saves"], 1);
        // The training is that of a run in which all went well.
        let other = folder("kept-well");
        report("well", &format!("{common} --every 30 --checkpoint '{}'", other.display()));
        assert_eq!(losses("failing"), losses("well"), "{algorithm}");
        [kept, other].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
        ["failing", "well"].into_iter().for_each(clean);
    }
}

#[test]
fn a_training_whose_end_is_not_saved_exits_with_1_after_its_report() {
    let kept = folder("kept-full");
    // A limit on the size of files stands for a full disk: checkpoints are larger, metrics.jsonl is smaller.
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$@\"";
    let arguments =
        format!("--ranks 2 --epochs 1 --every 30 --transport tcp --checkpoint '{}'", kept.display());
    let train = command("full", &arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(train.get_program()).args(train.get_args()).stdin(Stdio::null());
    let output = shell.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(out.contains("test accuracy"), "{out} {err}");
    assert!(
        err.contains("File too large") && err.contains("2 of 2 saves failed, the last one, too"),
        "{err}"
    );
    std::fs::remove_dir_all(&kept).unwrap();
    clean("full");
}
