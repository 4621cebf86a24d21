//! The example of PyTorch's DistributedDataParallel in Rust, as users start it.

use super::program::program;
use std::process::{Command, Stdio};

#[test]
fn two_ranks_train_on_a_folder_and_a_bad_one_is_named() {
    let folder = std::env::temp_dir().join(format!("hexagram-ddp-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let record = |label: u8| [&[label][..], &[51 * (label % 5); 3072]].concat();
    for part in 1..=5 {
        std::fs::write(folder.join(format!("data_batch_{part}.bin")), record(part)).unwrap();
    }
    std::fs::write(folder.join("test_batch.bin"), record(7)).unwrap();
    let small = ["--side", "32", "--workers", "2"];
    let run = || Command::new(program("ddp")).arg(&folder).args(small).stdin(Stdio::null()).output().unwrap();
    let output = run();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for rank in 0..2 {
        for line in
            [format!("Running basic DDP example on rank {rank}."), format!("Rank {rank} has made 3 steps.")]
        {
            assert_eq!(out.matches(&line).count(), 1, "{out}");
        }
    }
    std::fs::write(folder.join("data_batch_4.bin"), [0; 100]).unwrap();
    let output = run();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("data_batch_4.bin: 100 bytes are not a multiple"),
        "{text}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}
