//! Hosts that share no directory: copies on other hosts, and hosts that were lost or absent.

use super::*;
use hexagram_algorithms::logical::testing::spawn_hosts;

/// Three hosts, of which the first has two ranks.
const HOSTS: [usize; 4] = [0, 0, 1, 2];

fn directory(at: &Scratch, host: usize) -> PathBuf {
    at.path().join(format!("host{host}"))
}

/// Trains up to `steps` and saves, with `peers` copies, on `hosts`.
fn train(at: &Scratch, hosts: &[usize], (count, peers): (usize, usize)) {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm)?;
        let root = directory(at, hosts[comm.rank()]);
        let checkpoints = Checkpoints { peers, any_ranks: true, ..Checkpoints::new(root) };
        checkpoints.load(trainer.engine())?;
        let left = count - trainer.engine().steps() as usize;
        steps(&mut trainer, left)?;
        checkpoints.save(trainer.engine(), record(&comm, count as u64)).map(drop)
    };
    spawn_hosts(hosts, run).unwrap();
}

/// The step from which `hosts` continue.
fn resumed(at: &Scratch, hosts: &[usize], any_ranks: bool) -> Vec<Result<Option<u64>, String>> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm)?;
        let checkpoints = Checkpoints { any_ranks, ..Checkpoints::new(directory(at, hosts[comm.rank()])) };
        let own = checkpoints.load(trainer.engine());
        Ok(own.map(|own| own.map(|_| trainer.engine().steps())).map_err(|error| error.to_string()))
    };
    spawn_hosts(hosts, run).unwrap()
}

fn files_in(at: &Path) -> Vec<PathBuf> {
    names(at).into_iter().map(|name| at.join(name)).collect()
}

fn files(at: &Scratch, host: usize, step: u64) -> Vec<String> {
    let names = names(&directory(at, host).join(format!("step-{step:06}")));
    names.into_iter().map(|name| name[9..10].to_owned()).collect()
}

#[test]
fn a_host_that_is_lost_with_its_disk_loses_nothing() {
    let scratch = Scratch::new();
    train(&scratch, &HOSTS, (3, 1));
    assert_eq!([0, 1, 2].map(|host| files(&scratch, host, 3).concat()), ["013", "012", "23"]);
    for host in [0, 1, 2] {
        fs::remove_dir_all(directory(&scratch, host)).unwrap();
        // A rank was killed while it received a file.
        let left = directory(&scratch, host).join(".step-000003.copied-2");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("rank-00000-of-00004.safetensors"), b"torn").unwrap();
        assert_eq!(resumed(&scratch, &HOSTS, false), vec![Ok(Some(3)); 4], "{host}");
        // The directory has the files that its ranks need.
        assert_eq!(files(&scratch, host, 3).concat(), ["01", "2", "3"][host]);
        train(&scratch, &HOSTS, (3, 1));
        fs::remove_dir_all(directory(&scratch, host)).unwrap();
        let others: Vec<usize> = HOSTS.into_iter().filter(|other| *other != host).collect();
        assert_eq!(resumed(&scratch, &others, true), vec![Ok(Some(3)); others.len()], "{host}");
        // A new save for the next host.
        fs::remove_dir_all(scratch.path()).unwrap();
        train(&scratch, &HOSTS, (3, 1));
    }
    fs::remove_dir_all(directory(&scratch, 0)).unwrap();
    fs::remove_dir_all(directory(&scratch, 1)).unwrap();
    for error in resumed(&scratch, &HOSTS, false) {
        assert!(error.unwrap_err().contains("no checkpoint is complete"));
    }
}

#[test]
fn a_damaged_file_is_replaced_by_its_copy() {
    let scratch = Scratch::new();
    train(&scratch, &HOSTS, (3, 1));
    let file = directory(&scratch, 1).join("step-000003/rank-00002-of-00004.safetensors");
    let whole = fs::read(&file).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..whole.len() / 2], &[], &changed] {
        fs::write(&file, damaged).unwrap();
        assert_eq!(resumed(&scratch, &HOSTS, false), vec![Ok(Some(3)); 4]);
        assert_eq!(fs::read(&file).unwrap(), whole);
        fs::write(&file, damaged).unwrap();
        assert_eq!(resumed(&scratch, &HOSTS[2..], true), vec![Ok(Some(3)); 2]);
    }
    // A host of two ranks, of which one would find the damaged file of the other.
    let of_two = directory(&scratch, 0).join("step-000003/rank-00000-of-00004.safetensors");
    let sound = fs::read(&of_two).unwrap();
    fs::write(&of_two, b"").unwrap();
    assert_eq!(resumed(&scratch, &HOSTS, false), vec![Ok(Some(3)); 4]);
    assert_eq!(fs::read(&of_two).unwrap(), sound);
    // Two damaged copies.
    fs::write(&file, b"").unwrap();
    fs::write(directory(&scratch, 2).join("step-000003/rank-00002-of-00004.safetensors"), b"").unwrap();
    for error in resumed(&scratch, &HOSTS, false) {
        assert!(error.unwrap_err().contains("rank-00002-of-00004.safetensors is damaged"));
    }
}

/// Damages the copies of the file of rank 2 in a checkpoint on these hosts.
fn damage(at: &Scratch, step: u64, hosts: &[usize]) {
    for host in hosts {
        let file = format!("step-{step:06}/rank-00002-of-00004.safetensors");
        fs::write(directory(at, *host).join(file), b"").unwrap();
    }
}

#[test]
fn without_a_sound_copy_ranks_continue_with_the_files_that_are_left_or_an_older_checkpoint() {
    let scratch = Scratch::new();
    train(&scratch, &HOSTS, (2, 2));
    damage(&scratch, 2, &[0, 1]);
    // The copy of the last host is sound.
    assert_eq!(resumed(&scratch, &HOSTS, false), vec![Ok(Some(2)); 4]);
    train(&scratch, &HOSTS, (4, 2));
    damage(&scratch, 4, &[0, 1, 2]);
    assert_eq!(resumed(&scratch, &HOSTS, true), vec![Ok(Some(2)); 4]);
    assert_eq!(resumed(&scratch, &HOSTS[1..], true), vec![Ok(Some(2)); 3]);
    damage(&scratch, 2, &[0, 1, 2]);
    assert_eq!(resumed(&scratch, &HOSTS, true), vec![Ok(Some(4)); 4]);
    assert!(resumed(&scratch, &HOSTS, false).iter().all(Result::is_err));
}

#[test]
fn ranks_of_one_directory_continue_without_a_damaged_file_if_they_may() {
    let scratch = Scratch::new();
    train(&scratch, &[0; 4], (2, 0));
    let file =
        |rank: usize| directory(&scratch, 0).join(format!("step-000002/rank-{rank:05}-of-00004.safetensors"));
    fs::write(file(2), b"").unwrap();
    for ranks in [2, 4, 5] {
        assert_eq!(resumed(&scratch, &vec![0; ranks], true), vec![Ok(Some(2)); ranks]);
    }
    (0..4).for_each(|rank| fs::write(file(rank), b"").unwrap());
    for error in resumed(&scratch, &[0; 4], true) {
        assert!(error.unwrap_err().contains("no checkpoint is complete: step-000002 lacks the files"));
    }
}

#[test]
fn a_checkpoint_of_another_version_does_not_count_as_damaged() {
    let scratch = Scratch::new();
    train(&scratch, &[0; 2], (2, 0));
    train(&scratch, &[0; 2], (4, 0));
    for file in files_in(&directory(&scratch, 0).join("step-000004")) {
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.windows(10).position(|part| part == b"hexagram 2").unwrap();
        bytes[at + 9] = b'1';
        fs::write(file, bytes).unwrap();
    }
    for error in resumed(&scratch, &[0; 2], true) {
        assert!(error.unwrap_err().contains("is of the format `hexagram 1`"));
    }
}

#[test]
fn a_host_that_returns_with_another_save_of_that_step_gets_the_new_one() {
    let scratch = Scratch::new();
    train(&scratch, &HOSTS, (2, 1));
    train(&scratch, &HOSTS, (4, 1));
    // Host 2 keeps its files of step 4, while the others lose theirs and save that step again.
    for host in [0, 1] {
        fs::remove_dir_all(directory(&scratch, host).join("step-000004")).unwrap();
    }
    train(&scratch, &HOSTS[..3], (4, 1));
    // Those of earlier returns.
    for aside in ["step-000004-of-another-save", "step-000004-of-another-save.1"] {
        fs::create_dir(directory(&scratch, 2).join(aside)).unwrap();
        fs::write(directory(&scratch, 2).join(aside).join("file"), b"kept").unwrap();
    }
    let before =
        fs::read(directory(&scratch, 0).join("step-000004/rank-00000-of-00003.safetensors")).unwrap();
    assert_eq!(resumed(&scratch, &HOSTS, true), vec![Ok(Some(4)); 4]);
    for (aside, file) in [
        ("step-000004-of-another-save", "file"),
        ("step-000004-of-another-save.1", "file"),
        ("step-000004-of-another-save.2", "rank-00003-of-00004.safetensors"),
    ] {
        assert!(directory(&scratch, 2).join(aside).join(file).is_file(), "{aside}");
    }
    assert_eq!(
        fs::read(directory(&scratch, 2).join("step-000004/rank-00000-of-00003.safetensors")).unwrap(),
        before
    );
}

#[test]
fn of_a_newer_checkpoint_without_all_files_and_an_older_whole_one_the_older_is_loaded() {
    let scratch = Scratch::new();
    train(&scratch, &HOSTS, (2, 1));
    train(&scratch, &HOSTS, (4, 0));
    fs::remove_dir_all(directory(&scratch, 1)).unwrap();
    assert_eq!(resumed(&scratch, &HOSTS, true), vec![Ok(Some(2)); 4]);
    // Without the older one, identical replicas continue with the files that are left.
    for host in [0, 1, 2] {
        let _ = fs::remove_dir_all(directory(&scratch, host).join("step-000002"));
    }
    assert_eq!(resumed(&scratch, &HOSTS, true), vec![Ok(Some(4)); 4]);
    assert!(resumed(&scratch, &HOSTS, false).iter().all(Result::is_err));
}

#[test]
fn ranks_of_one_directory_copy_nothing() {
    let scratch = Scratch::new();
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm)?;
        steps(&mut trainer, 1)?;
        let before = comm.world().traffic().bytes_sent();
        Checkpoints::new(scratch.path().join("alone")).save(trainer.engine(), record(&comm, 1))?;
        let between = comm.world().traffic().bytes_sent();
        let checkpoints = Checkpoints { peers: 2, ..Checkpoints::new(scratch.path().join("with-peers")) };
        checkpoints.save(trainer.engine(), record(&comm, 1))?;
        Ok((between - before, comm.world().traffic().bytes_sent() - between))
    };
    for (alone, with_peers) in spawn_hosts(&HOSTS, run).unwrap() {
        // Only the lists of files, which are empty.
        assert!(with_peers < alone + 1000, "{alone} {with_peers}");
    }
    assert_eq!(names(&scratch.path().join("with-peers/step-000001")).len(), 4);
}
