//! Tests of the variables that launchers set: which set takes precedence, its meaning, and which sets are rejected.

use super::*;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

type Variables<'a> = Vec<(&'a str, &'a str)>;

/// Returns the value of a variable. Later ones win, as on a command line.
fn value(variables: &[(&str, &str)], name: &str) -> Option<String> {
    variables.iter().rfind(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
}

fn read(variables: &[(&str, &str)]) -> Result<Option<Placement>> {
    Placement::from_lookup(&|name| value(variables, name))
}

fn place(variables: &[(&str, &str)]) -> Placement {
    read(variables).unwrap().unwrap()
}

/// Returns rank, size, local rank and local size.
fn numbers(placement: &Placement) -> [usize; 4] {
    [placement.rank, placement.size, placement.local_rank, placement.local_size]
}

fn refusal(variables: &[(&str, &str)]) -> String {
    read(variables).expect_err("these contradict each other").to_string()
}

/// Returns `variables` followed by `more`.
fn and<'a>(mut variables: Variables<'a>, more: &[(&'a str, &'a str)]) -> Variables<'a> {
    variables.extend(more);
    variables
}

const OURS: [(&str, &str); 3] =
    [("HEXAGRAM_RANK", "1"), ("HEXAGRAM_SIZE", "4"), ("HEXAGRAM_ADDR", "127.0.0.1:4000")];
const TORCHRUN: [(&str, &str); 5] = [
    ("RANK", "2"),
    ("WORLD_SIZE", "3"),
    ("LOCAL_RANK", "2"),
    ("MASTER_ADDR", "::1"),
    ("MASTER_PORT", "29500"),
];
const MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_MCA_ess_base_jobid", "77"),
];

/// Returns the variables of the second of two tasks on the second of two hosts.
fn step<'a>() -> Variables<'a> {
    vec![
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_NNODES", "2"),
        ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_JOB_NODELIST", "node[07-08]"),
    ]
}

/// Variables that put all four tasks on one host.
const ONE_HOST: [(&str, &str); 4] =
    [("SLURM_NNODES", "1"), ("SLURM_TASKS_PER_NODE", "4"), ("SLURM_LOCALID", "3"), ("SLURM_NODEID", "0")];

fn hydra<'a>() -> Variables<'a> {
    vec![("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")]
}

fn flux(nodes: &str) -> Variables<'_> {
    vec![
        ("FLUX_TASK_RANK", "1"),
        ("FLUX_JOB_SIZE", "2"),
        ("FLUX_TASK_LOCAL_ID", "1"),
        ("FLUX_JOB_NNODES", nodes),
        ("FLUX_JOB_ID", "f2k7"),
    ]
}

#[test]
fn every_launcher_is_understood() {
    let jsrun = [
        ("JSM_NAMESPACE_RANK", "1"),
        ("JSM_NAMESPACE_SIZE", "2"),
        ("JSM_NAMESPACE_LOCAL_RANK", "1"),
        ("JSM_NAMESPACE_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "lsf-77"),
    ];
    let mvapich = vec![
        ("MV2_COMM_WORLD_RANK", "1"),
        ("MV2_COMM_WORLD_SIZE", "2"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "1"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMI_PORT", "n1:4711"),
    ];
    let pmix = vec![
        ("PMIX_RANK", "1"),
        ("PMIX_NAMESPACE", "prterun-n1-12@1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    for (variables, launcher, expected, rendezvous) in [
        (and(hydra(), &[("PMI_PORT", "n1:33")]), Launcher::Pmi, [1, 2, 1, 2], "pmi-n1:33"),
        (mvapich, Launcher::Mvapich, [1, 2, 1, 2], "pmi-n1:4711"),
        (pmix, Launcher::Pmix, [1, 2, 1, 2], "prterun-n1-12@1"),
        (flux("1"), Launcher::Flux, [1, 2, 1, 2], "flux-f2k7"),
        (jsrun.to_vec(), Launcher::Jsm, [1, 2, 1, 2], "lsf-77"),
        (step(), Launcher::Slurm, [3, 4, 1, 2], "node07:22131"),
        (and(step(), &ONE_HOST), Launcher::Slurm, [3, 4, 3, 4], "slurm-4711.3"),
    ] {
        let placement = place(&variables);
        assert_eq!((placement.launcher, numbers(&placement)), (launcher, expected), "{variables:?}");
        assert!(
            placement.rendezvous.to_string().ends_with(rendezvous),
            "{variables:?}: {}",
            placement.rendezvous
        );
        let told = place(&and(variables, &[("HEXAGRAM_ADDR", "10.0.0.1:9")]));
        assert_eq!(told.rendezvous.to_string(), "10.0.0.1:9");
    }
}

#[test]
fn mpi_goes_before_slurm() {
    let inside = and(step(), &hydra());
    assert_eq!(place(&and(inside, &[("PMI_PORT", "n1:33")])).launcher, Launcher::Pmi);
}

#[test]
fn ranks_of_one_job_share_their_process_manager() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let descriptor = ours.as_raw_fd().to_string();
    let rendezvous = place(&and(hydra(), &[("PMI_FD", &descriptor)])).rendezvous.to_string();
    assert!(rendezvous.ends_with(&format!("-pmi-{}", std::process::id())), "{rendezvous}");
    for not_a_socket in ["0x6", "-1", "999999"] {
        assert!(refusal(&and(hydra(), &[("PMI_FD", not_a_socket)])).contains("HEXAGRAM_ADDR"));
    }
}

#[test]
fn only_a_step_of_slurm_has_ranks() {
    for id in ["", "batch", "4294967291", "4294967290", "4294967293"] {
        assert_eq!(read(&and(step(), &[("SLURM_STEP_ID", id)])).unwrap(), None, "{id}");
    }
    let batch: Variables<'_> = step().into_iter().filter(|(name, _)| *name != "SLURM_STEP_ID").collect();
    assert_eq!(read(&batch).unwrap(), None);
    let salloc: Variables<'_> = step().into_iter().filter(|(name, _)| *name != "SLURM_PROCID").collect();
    assert_eq!(read(&salloc).unwrap(), None);
}

#[test]
fn a_step_smaller_than_its_job_goes_by_its_own_numbers() {
    let small = [
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("SLURM_STEP_NODELIST", "node08"),
        ("SLURM_NTASKS_PER_NODE", "64"),
    ];
    let placement = place(&and(step(), &small));
    assert_eq!(numbers(&placement), [0, 2, 0, 2]);
    assert!(matches!(placement.rendezvous, Rendezvous::Local(_)));
    let spread = [
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ("SLURM_STEP_NODELIST", "node[08,11]"),
    ];
    let placement = place(&and(and(step(), &small), &spread));
    assert_eq!(numbers(&placement), [0, 2, 0, 1]);
    assert!(placement.rendezvous.to_string().starts_with("node08:"), "{}", placement.rendezvous);
}

#[test]
fn slurm_starts_the_ranks_of_others_too() {
    // srun --mpi=pmi2: the numbers agree, and only Slurm's variables name the hosts.
    let placement = place(&and(step(), &[("PMI_RANK", "3"), ("PMI_SIZE", "4")]));
    assert_eq!((placement.launcher, numbers(&placement)), (Launcher::Pmi, [3, 4, 1, 2]));
    assert_eq!(placement.rendezvous.to_string(), "node07:22131");
    // srun --mpi=pmix: PMIx has no variable for the size.
    assert_eq!(place(&and(step(), &[("PMIX_RANK", "3")])).launcher, Launcher::Slurm);
    // mpirun's own daemon is the task: its numbers are not the ranks'.
    let several = [("PMI_RANK", "5"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "4")];
    assert!(refusal(&and(step(), &several)).contains("several hosts"));
}

#[test]
fn several_hosts_without_an_address_are_refused_with_the_fix() {
    let spread = [("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
    assert!(refusal(&and(hydra(), &spread)).contains("-genv HEXAGRAM_ADDR"));
    let nameless = [("SLURM_JOB_NODELIST", "")];
    assert!(refusal(&and(step(), &nameless)).contains("HEXAGRAM_ADDR=host:port"));
}

#[test]
fn a_step_that_contradicts_itself_is_refused() {
    assert!(
        refusal(&and(step(), &[("SLURM_PROCID", "4")])).contains("SLURM_PROCID=4 contradicts SLURM_NTASKS=4")
    );
    assert!(refusal(&and(step(), &[("SLURM_PROCID", "x")])).contains("SLURM_PROCID=x"));
    assert!(refusal(&and(hydra(), &[("PMI_RANK", "2")])).contains("PMI_RANK=2 contradicts PMI_SIZE=2"));
}

#[test]
fn no_launcher_is_no_error() {
    assert_eq!(read(&[]).unwrap(), None);
    assert_eq!(read(&[("LOCAL_RANK", "0")]).unwrap(), None);
}

#[test]
fn the_first_complete_set_wins() {
    let mut ours = OURS;
    ours[0].1 = "2";
    ours[1].1 = "3";
    let mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "3")];
    let all = [ours.as_slice(), &TORCHRUN, &mpi].concat();
    let placement = read(&all).unwrap().unwrap();
    assert_eq!((placement.launcher, placement.rank, placement.size), (Launcher::Hexagram, 2, 3));
    let placement = read(&[TORCHRUN.as_slice(), &mpi].concat()).unwrap().unwrap();
    assert_eq!((placement.launcher, placement.rank, placement.size), (Launcher::Torchrun, 2, 3));
    assert_eq!(placement.rendezvous, Rendezvous::Tcp { host: "::1".into(), port: 29500, agent: false });
    let placement = read(&[MPI.as_slice(), &[("HEXAGRAM_RANK", "0")]].concat()).unwrap().unwrap();
    assert_eq!((placement.launcher, placement.rank, placement.size), (Launcher::OpenMpi, 0, 2));
}

#[test]
fn sets_that_contradict_each_other_are_refused_with_both_values() {
    let message = refusal(&[OURS.as_slice(), &TORCHRUN].concat());
    for value in ["HEXAGRAM_RANK=1", "HEXAGRAM_SIZE=4", "RANK=2", "WORLD_SIZE=3", "unset"] {
        assert!(message.contains(value), "{value}: {message}");
    }
    // The same rank of the same world, but not the same on this host.
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    let message = refusal(&[torchrun.as_slice(), &MPI].concat());
    assert!(message.contains("LOCAL_WORLD_SIZE=1"), "{message}");
    assert!(message.contains("OMPI_COMM_WORLD_LOCAL_SIZE=2"), "{message}");
}

#[test]
fn what_srun_says_of_the_launcher_that_it_started_is_no_contradiction() {
    let srun = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
    ];
    let placement = read(&[TORCHRUN.as_slice(), &srun].concat()).unwrap().unwrap();
    assert_eq!((placement.launcher, placement.rank, placement.size), (Launcher::Torchrun, 2, 3));
}

#[test]
fn a_variable_that_is_empty_is_not_set() {
    let names = [
        "HEXAGRAM_RANK",
        "HEXAGRAM_SIZE",
        "HEXAGRAM_LOCAL_RANK",
        "HEXAGRAM_LOCAL_SIZE",
        "HEXAGRAM_ADDR",
        "HEXAGRAM_LISTEN_FD",
        "HEXAGRAM_SECRET_FILE",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_FD",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "MV2_COMM_WORLD_RANK",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
    ];
    for empty in ["", "  "] {
        let all: Vec<_> = names.into_iter().map(|name| (name, empty)).collect();
        assert_eq!(read(&all).unwrap(), None);
        let mpi = [MPI.as_slice(), &all].concat();
        assert_eq!(read(&mpi).unwrap().unwrap().launcher, Launcher::OpenMpi);
    }
    let unset = [TORCHRUN.as_slice(), &[("TORCHELASTIC_RUN_ID", "")]].concat();
    assert!(matches!(read(&unset).unwrap().unwrap().rendezvous, Rendezvous::Tcp { agent: false, .. }));
    let mut addressless = TORCHRUN;
    addressless[3].1 = "";
    assert!(refusal(&addressless).contains("MASTER_ADDR"));
}

#[test]
fn the_last_port_is_refused_where_an_agent_may_have_it() {
    let mut torchrun = TORCHRUN;
    torchrun[4].1 = "65535";
    assert!(read(&torchrun).is_ok());
    let message = refusal(&[torchrun.as_slice(), &[("TORCHELASTIC_RUN_ID", "none")]].concat());
    assert!(message.contains("MASTER_PORT=65535"), "{message}");
}

#[test]
fn torchruns_agent_is_noticed() {
    let placement = read(&[TORCHRUN.as_slice(), &[("TORCHELASTIC_RUN_ID", "none")]].concat());
    assert!(matches!(placement.unwrap().unwrap().rendezvous, Rendezvous::Tcp { agent: true, .. }));
}

#[test]
fn mpirun_on_one_host_meets_at_a_name_of_user_and_job() {
    let Rendezvous::Local(name) = read(&MPI).unwrap().unwrap().rendezvous else { panic!() };
    assert!(name.ends_with("-77"), "{name}");
    let mut several_hosts = MPI;
    several_hosts[3] = ("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
    assert!(refusal(&several_hosts).contains("HEXAGRAM_ADDR"));
    let helped = [several_hosts.as_slice(), &[("HEXAGRAM_ADDR", "10.0.0.1:9")]].concat();
    assert!(matches!(read(&helped).unwrap().unwrap().rendezvous, Rendezvous::Tcp { port: 9, .. }));
}

#[test]
fn contradictions_name_both_values() {
    let message = refusal(&[("RANK", "5"), ("WORLD_SIZE", "4")]);
    assert!(message.contains("RANK=5") && message.contains("WORLD_SIZE=4"), "{message}");
    let message = refusal(&[("HEXAGRAM_LOCAL_RANK", "3"), ("HEXAGRAM_LOCAL_SIZE", "3")]);
    assert!(message.contains("HEXAGRAM_LOCAL_RANK=3"), "{message}");
    let message = refusal(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "3")]);
    assert!(message.contains("LOCAL_WORLD_SIZE=3") && message.contains("WORLD_SIZE=2"), "{message}");
    // Rejected although a different set is complete and takes precedence.
    let message = refusal(&[OURS.as_slice(), &[("RANK", "5"), ("WORLD_SIZE", "4")]].concat());
    assert!(message.contains("RANK=5"), "{message}");
}

#[test]
fn malformed_values_are_named() {
    for (name, value) in [("RANK", "x"), ("HEXAGRAM_SIZE", "-1"), ("OMPI_COMM_WORLD_SIZE", "1e3")] {
        let message = refusal(&[(name, value)]);
        assert!(message.contains(&format!("{name}={value}")), "{message}");
    }
    assert!(refusal(&[("RANK", "0"), ("WORLD_SIZE", "99999999")]).contains("WORLD_SIZE=99999999"));
    for address in ["nowhere", "::1", ":80", "host:", "host:0", "host:66000"] {
        let mut ours = OURS;
        ours[2].1 = address;
        assert!(refusal(&ours).contains("HEXAGRAM_ADDR"), "{address}");
    }
}

#[test]
fn a_set_without_an_address_says_which_variable_is_missing() {
    assert!(refusal(&OURS[..2]).contains("HEXAGRAM_ADDR"));
    assert!(refusal(&TORCHRUN[..3]).contains("MASTER_ADDR"));
    assert!(refusal(&TORCHRUN[..4]).contains("MASTER_PORT"));
}

#[test]
fn an_unreadable_secret_is_an_error() {
    let with_secret = [OURS.as_slice(), &[("HEXAGRAM_SECRET_FILE", "/does/not/exist")]].concat();
    assert!(refusal(&with_secret).contains("/does/not/exist"));
}

#[test]
fn a_heterogeneous_job_of_slurm_is_refused_unless_other_variables_win() {
    let components = [("SLURM_HET_SIZE", "2")];
    let message = refusal(&and(step(), &components));
    assert!(message.contains("SLURM_HET_SIZE=2") && message.contains("HEXAGRAM_RANK"), "{message}");
    let ours = [("HEXAGRAM_RANK", "3"), ("HEXAGRAM_SIZE", "4"), ("HEXAGRAM_ADDR", "127.0.0.1:4000")];
    assert_eq!(place(&and(and(step(), &components), &ours)).launcher, Launcher::Hexagram);
    assert_eq!(place(&and(step(), &[("SLURM_HET_SIZE", "1")])).launcher, Launcher::Slurm);
}

#[test]
fn flux_tells_the_ranks_of_a_host_only_where_there_is_one() {
    let message = refusal(&flux("2"));
    assert!(message.contains("Flux's variables describe several hosts"), "{message}");
    // Its PMI says no more, and wins.
    let both = and(flux("1"), &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_PORT", "n1:33")]);
    let placement = place(&both);
    assert_eq!((placement.launcher, numbers(&placement)), (Launcher::Pmi, [1, 2, 1, 2]));
}

#[test]
fn local_numbers_of_pmi_have_two_names() {
    let pmi = |rank, size| [("PMI_RANK", "3"), ("PMI_SIZE", "4"), (rank, "1"), (size, "2"), OURS[2]];
    for (rank, size) in [("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")] {
        assert_eq!(numbers(&place(&pmi(rank, size))), [3, 4, 1, 2], "{rank}");
    }
}

#[test]
fn ranks_meet_through_a_store_on_several_hosts_without_an_address() {
    let spread = [("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
    let alone = [("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
    let pmi2 = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
    let unplaced = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    for (variables, expected) in [
        (and(hydra(), &spread), Some((1, 2))),
        (and(and(hydra(), &spread), &[("HEXAGRAM_ADDR", "10.0.0.1:9")]), None),
        (hydra(), None),
        (and(hydra(), &alone), None),
        (unplaced.to_vec(), Some((1, 2))),
        // Slurm names an address, but with its store the ranks need no port.
        (step(), Some((3, 4))),
        // srun's PMI does not name the ranks of a host; Slurm does.
        (and(step(), &pmi2), Some((3, 4))),
        (and(and(step(), &pmi2), &ONE_HOST), None),
        (OURS.to_vec(), None),
        (TORCHRUN.to_vec(), None),
        (vec![], None),
    ] {
        let found = Placement::without_address_in(&|name| value(&variables, name)).unwrap();
        assert_eq!(found, expected, "{variables:?}");
    }
}

#[test]
fn a_long_name_of_a_job_fits_the_name_of_a_socket() {
    let name = |namespace: &str| {
        let pmix = [("PMIX_NAMESPACE", namespace), ("OMPI_MCA_ess_base_jobid", "")];
        let Rendezvous::Local(name) = place(&and(MPI.to_vec(), &pmix)).rendezvous else {
            panic!("it is local")
        };
        name
    };
    let [one, other] = ["a", "b"].map(|end| name(&format!("{}{end}", "prterun-host-".repeat(20))));
    assert!(one != other && one.len() < 108, "{one}");
    assert!(name("short").ends_with("-short"));
}
