//! A rank that is killed while a step is in progress during the next forward pass: the others name it, in the forward
//! pass or wherever they wait, and end. Each rank is a separate process.

use hexagram_algorithms::logical::{Communicator, DType, Error, JoinOptions, Result, TransportKind, World};
use hexagram_algorithms::{DataParallel, EngineOptions, Mode, Order, Overlap, Parameter, Sgd, registry};
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const ROLE: &str = "HEXAGRAM_TEST_OVERLAP";
const RANKS: usize = 3;
const VICTIM: usize = 1;
const LAYERS: usize = 4;
const ELEMENTS: usize = 4096;

#[test]
#[ignore = "the test below starts it in processes of their own"]
fn one_rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let (transport, algorithm) = role.split_once(' ').unwrap();
    let ended = train(transport.parse().unwrap(), algorithm);
    let told = match &ended {
        Err(Error::PeerFailed { culprit, .. }) => format!("named {}", culprit.rank),
        Err(error) => format!("failed otherwise: {error}"),
        Ok(()) => "finished".to_owned(),
    };
    eprintln!("{told}");
}

/// Trains until the victim is killed, which leaves a step in progress and stops there.
fn train(transport: TransportKind, algorithm: &str) -> Result<()> {
    let world = World::join(&JoinOptions { transport, ..JoinOptions::default() })?;
    let comm = Communicator::open(&world, 0)?;
    let shape =
        |layer: usize| Parameter { name: format!("layer{layer}"), dtype: DType::F32, shape: vec![ELEMENTS] };
    let options = EngineOptions {
        bucket_bytes: 4 * ELEMENTS,
        first_bucket_bytes: 4 * ELEMENTS,
        order: Order::Listed,
        overlap: Overlap::Forward,
        optimizer: Some(Arc::new(Sgd::default())),
        ..EngineOptions::default()
    };
    let parameters = (0..LAYERS).map(shape).collect();
    let mut engine = DataParallel::new(&comm, parameters, registry::named(algorithm)?, options)?;
    engine.set_learning_rate(0.1);
    for step in 0.. {
        engine.forward()?;
        (0..LAYERS).try_for_each(|layer| engine.wait_for(&[layer]))?;
        engine.begin(Mode::Synchronize)?;
        (0..LAYERS).rev().try_for_each(|layer| engine.hooks().ready_slice(layer, &[1.0f32; ELEMENTS]))?;
        engine.finish()?;
        engine.step()?;
        if step == 2 && comm.rank() == VICTIM {
            eprintln!("left a step on its way");
            // Until the process is killed.
            loop {
                std::thread::park();
            }
        }
    }
    Ok(())
}

/// Starts the ranks, with a unique rendezvous name.
fn start(role: &str) -> Vec<(Child, BufReader<ChildStderr>)> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = u64::from(std::process::id()) << 32 | u64::from(JOBS.fetch_add(1, Ordering::Relaxed));
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "engine::killed::one_rank", "--ignored", "--nocapture"]).env(ROLE, role);
        command.env("OMPI_MCA_ess_base_jobid", job.to_string());
        for (name, value) in [("RANK", rank), ("SIZE", RANKS), ("LOCAL_RANK", rank), ("LOCAL_SIZE", RANKS)] {
            command.env(format!("OMPI_COMM_WORLD_{name}"), value.to_string());
        }
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        (process, stderr)
    };
    (0..RANKS).map(start).collect()
}

/// Reads the output of a rank until a line contains all of this; returns that line.
fn hears(stderr: &mut BufReader<ChildStderr>, what: &[&str]) -> String {
    let mut lines = stderr.lines().map_while(Result::ok);
    lines.find(|line| what.iter().any(|what| line.contains(what))).unwrap_or_else(|| panic!("never {what:?}"))
}

#[test]
fn a_rank_that_is_killed_with_a_step_on_its_way_is_named_by_all_others() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        for algorithm in ["gradient-allreduce", "local-sgd(period=1)"] {
            let mut ranks = start(&format!("{transport} {algorithm}"));
            hears(&mut ranks[VICTIM].1, &["left a step"]);
            ranks[VICTIM].0.kill().unwrap();
            for (rank, (process, stderr)) in ranks.iter_mut().enumerate() {
                if rank != VICTIM {
                    let told = hears(stderr, &["named", "otherwise", "finished"]);
                    assert_eq!(told, format!("named {VICTIM}"), "{transport}, {algorithm}, rank {rank}");
                }
                process.wait().unwrap();
            }
        }
    }
}
