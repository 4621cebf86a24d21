//! Residual nets on CIFAR-10, and the devices that `--device` names.

use super::*;

/// Arguments of a short training on two ranks.
fn short(model: &str, data: &Path, rest: &str) -> String {
    format!("--model {model} --data {} --ranks 2 --batch 2 --lr 0.01 {rest}", data.display())
}

#[test]
fn resnet_50_takes_a_step() {
    let data = write_cifar("resnet50-data", 5);
    let report = report("resnet50", &short("resnet50", &data, "--epochs 1 --workers 1"));
    assert_eq!(losses("resnet50").len(), 1);
    assert!(losses("resnet50")[0].is_finite());
    assert_eq!(
        (report["model"].as_str(), report["replicas_identical"].as_bool()),
        (Some("resnet50"), Some(true))
    );
    // Parameters in four bytes each: of all of them, a rank of two sends half twice.
    assert!(report["bytes_of_gradient_all_reduce"].as_u64() >= Some(2 * 4 * 23_520_842));
    clean("resnet50");
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn a_resumed_residual_net_goes_on_bit_for_bit() {
    let data = write_cifar("resnet14-data", 10);
    let kept = folder("kept-resnet14");
    let saving = format!("--checkpoint {} --every 3", kept.display());
    let whole = report("whole14", &short("resnet14", &data, "--epochs 2"));
    report("part14", &short("resnet14", &data, &format!("--epochs 1 {saving}")));
    let rest =
        report("rest14", &short("resnet14", &data, &format!("--epochs 2 {saving} --resume --workers 2")));
    assert_eq!((losses("whole14").len(), losses("part14").len()), (4, 2));
    assert_eq!(losses("whole14")[2..], losses("rest14"));
    for field in ["test_accuracy", "final_loss"] {
        assert_eq!(whole[field], rest[field]);
    }
    let output = run("rest14", &short("resnet50", &data, &format!("--epochs 3 {saving} --resume --change")));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--model cannot change"), "{text}");
    ["whole14", "part14", "rest14"].into_iter().for_each(clean);
    [kept, data].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
}

#[test]
fn files_that_are_missing_or_damaged_are_named_in_one_line() {
    let data = write_cifar("damaged-data", 5);
    let said = |broken: &str, bytes: Option<&[u8]>, what: &str| {
        let file = data.join(broken);
        let whole = std::fs::read(&file).unwrap();
        match bytes {
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let output = run("damaged", &short("resnet14", &data, "--epochs 1 --transport thread"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{text}");
        assert!(text.lines().all(|line| line.contains(broken) && line.contains(what)), "{text}");
        std::fs::write(&file, whole).unwrap();
    };
    said("data_batch_3.bin", None, "check the path");
    said("test_batch.bin", None, "check the path");
    said("test_batch.bin", Some(&[0; 3072]), "3072 bytes are not records of 3073 bytes");
    said("data_batch_2.bin", Some(&[99; 3073]), "record 0 has the label 99 instead of 0 to 9");
    clean("damaged");
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_said_once_before_ranks_start() {
    for device in ["cuda", "cuda:0"] {
        // No driver, whatever the machine has.
        let output = command("device", &format!("--ranks 4 --epochs 1 --device {device}"))
            .env("LD_LIBRARY_PATH", "")
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.starts_with("train: ") && text.to_lowercase().contains("cuda"), "{text}");
    }
    let report = report("device", "--ranks 2 --epochs 1 --device auto");
    assert_eq!(
        (report["device"].as_str(), report["replicas_identical"].as_bool()),
        (Some("auto"), Some(true))
    );
    clean("device");
}
