//! The candle programs as users start them, as far as the tests of `train` in the laboratory do not cover them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod ddp;
#[allow(dead_code, reason = "the laboratory's tests need more of it")]
#[path = "../../../../lab/tests/train/program.rs"]
mod program;

use program::{clean, command, folder, losses, report, run};
use std::path::{Path, PathBuf};

/// Example under test.
const PROGRAM: &str = "candle-train";

#[test]
fn digits_are_learned() {
    let report = report("digits", "--ranks 2 --epochs 12");
    assert!(report["test_accuracy"].as_f64().unwrap() >= 0.9, "{report}");
    assert_eq!(
        (report["model"].as_str(), report["replicas_identical"].as_bool()),
        (Some("small"), Some(true))
    );
    clean("digits");
}

#[test]
fn in_f64_four_ranks_take_the_steps_of_one_with_the_fourfold_batch() {
    report("four64", "--ranks 4 --batch 16 --epochs 10 --dtype f64");
    report("one64", "--ranks 1 --batch 64 --epochs 10 --dtype f64");
    let four = losses("four64");
    let one = losses("one64");
    assert_eq!((four.len(), one.len()), (220, 220));
    let worst = four.iter().zip(&one).map(|(four, one)| (four - one).abs() / one.abs()).fold(0.0, f64::max);
    assert!(worst < 1e-9, "a whole run in f64 differs by {worst:e}");
    ["four64", "one64"].into_iter().for_each(clean);
}

/// Files with `count` images of a size, whose label is the position of a white stripe, and half as many held-out
/// images.
fn write_images(folder: &Path, (side, count): (usize, usize), write: impl Fn(&str, &[(u8, Vec<u8>)])) {
    std::fs::create_dir_all(folder).unwrap();
    let image = |index: usize| {
        let label = index * 7 % 10;
        let pixel = |at: usize| if at % side / 3 == label { 255 } else { (at * index % 32) as u8 };
        (label as u8, (0..side * side).map(pixel).collect::<Vec<u8>>())
    };
    write("train", &(0..count).map(image).collect::<Vec<_>>());
    write("test", &(count..count + count / 2).map(image).collect::<Vec<_>>());
}

/// A folder of this name in the format of CIFAR-10, with `count` training images.
fn write_cifar(name: &str, count: usize) -> PathBuf {
    let cifar = folder(name);
    write_images(&cifar, (32, count), |part, images| {
        let record = |(label, pixels): &(u8, Vec<u8>)| [&[*label][..], pixels, pixels, pixels].concat();
        let records: Vec<Vec<u8>> = images.iter().map(record).collect();
        if part == "test" {
            return std::fs::write(cifar.join("test_batch.bin"), records.concat()).unwrap();
        }
        for (number, records) in (1..).zip(records.chunks(count / 5)) {
            std::fs::write(cifar.join(format!("data_batch_{number}.bin")), records.concat()).unwrap();
        }
    });
    cifar
}

#[test]
fn mnist_and_cifar_are_learned_from_their_folders() {
    let mnist = folder("mnist-data");
    write_images(&mnist, (30, 200), |part, images| {
        let part = if part == "train" { "train" } else { "t10k" };
        let count = (images.len() as u32).to_be_bytes();
        let header = |dimensions: u8| [&[0, 0, 8, dimensions][..], &count].concat();
        let pixels: Vec<u8> = images.iter().flat_map(|image| image.1.clone()).collect();
        let pixels = [header(3), vec![0, 0, 0, 30, 0, 0, 0, 30], pixels].concat();
        let labels = [header(1), images.iter().map(|image| image.0).collect()].concat();
        std::fs::write(mnist.join(format!("{part}-images-idx3-ubyte")), pixels).unwrap();
        std::fs::write(mnist.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    });
    let cifar = write_cifar("cifar-data", 200);
    for (data, name) in [(&mnist, "mnist"), (&cifar, "cifar")] {
        let arguments =
            format!("--data '{}' --ranks 2 --batch 10 --epochs 3 --workers 1 --lr 0.05", data.display());
        let report = report(name, &arguments);
        assert!(report["test_accuracy"].as_f64().unwrap() > 0.9, "{report}");
        assert_eq!(report["replicas_identical"], true, "{report}");
        clean(name);
        std::fs::remove_dir_all(data).unwrap();
    }
}

/// Arguments of a short training on two ranks.
fn short(model: &str, data: &Path, rest: &str) -> String {
    format!("--model {model} --data '{}' --ranks 2 --batch 2 --lr 0.01 {rest}", data.display())
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
    // Parameters of four bytes: each of two ranks sends half of them twice.
    assert!(report["bytes_of_gradient_all_reduce"].as_u64() >= Some(2 * 4 * 23_520_842));
    clean("resnet50");
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn a_resumed_residual_net_goes_on_bit_for_bit() {
    let data = write_cifar("resnet14-data", 10);
    let kept = folder("kept-resnet14");
    let saving = format!("--checkpoint '{}' --every 3", kept.display());
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
    said("test_batch.bin", Some(&[0; 3072]), "3072 bytes are not a multiple of the record size 3073");
    said("data_batch_2.bin", Some(&[99; 3073]), "record 0 has the label 99 instead of 0 to 9");
    clean("damaged");
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_said_once_before_ranks_start() {
    for device in ["cuda", "cuda:0"] {
        // Without a driver, on any machine.
        let output = command("device", &format!("--ranks 4 --epochs 1 --device {device}"))
            .env("LD_LIBRARY_PATH", "")
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.starts_with("candle-train: ") && text.to_lowercase().contains("cuda"), "{text}");
    }
    let report = report("device", "--ranks 2 --epochs 1 --device auto");
    assert_eq!(
        (report["device"].as_str(), report["replicas_identical"].as_bool()),
        (Some("auto"), Some(true))
    );
    clean("device");
}
