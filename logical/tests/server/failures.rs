//! Failures of servers and clocks: the named rank, and the operations that continue.

use super::*;

/// Runs `body` on 3 ranks of every transport; every rank must get an error with all of `words` in it.
fn all_fail(words: &[&str], body: impl Fn(&Communicator) -> Result<()> + Sync) {
    for transport in on_threads() {
        // No rank fails while others are still opening their channels.
        let open = Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            open.wait();
            Ok(body(&comm).err())
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text =
                error.unwrap_or_else(|| panic!("rank {rank} over {transport} saw no error")).to_string();
            assert!(words.iter().all(|word| text.contains(word)), "rank {rank} over {transport}: {text}");
        }
    }
}

#[test]
fn servers_and_clocks_that_differ_are_refused_on_all_ranks() {
    all_fail(&["server(8 × f32)", "server(9 × f32)"], |comm| {
        begin(comm, 1, if comm.rank() == 1 { 9 } else { 8 }, Add, ServerOptions::default()).map(drop)
    });
    all_fail(&["clock(3 ×", "clock(4 ×"], |comm| {
        begin(comm, if comm.rank() == 2 { 4 } else { 3 }, 8, Add, ServerOptions::default()).map(drop)
    });
    all_fail(&["server(8 × f32)", "server(8 × f32, codec"], |comm| {
        let options =
            if comm.rank() == 1 { encoded::with_feedback(Feedback::None) } else { ServerOptions::default() };
        begin(comm, 1, 8, Add, options).map(drop)
    });
}

#[test]
fn an_update_that_panics_ends_everyones_server() {
    all_fail(&["panicked"], |comm| {
        let break_down = |_: &mut [f32], _: &[f32], push: &Push| assert!(push.from != 1, "as it was told to");
        let (clock, mut server) = begin(comm, 2, 9, break_down, ServerOptions::default())?;
        loop {
            server.blocking().push(0..9, &vector(&[1.0; 9]))?;
            clock.tick();
            server.blocking().pull(0..9, &mut vector(&[0.0; 9]))?;
        }
    });
}

#[test]
fn a_rank_that_never_ticks_is_a_deadline_that_names_it() {
    all_fail(&["rank 2 (host"], |comm| {
        let (clock, _server) = begin(comm, 1, 9, Add, ServerOptions::default())?;
        if comm.rank() == 2 {
            // Until the others give up.
            return comm.blocking().recv(&mut [0f32], 0);
        }
        // Long enough for rank 1, even where the machine is busy.
        comm.set_deadline(Duration::from_secs(3));
        loop {
            clock.tick();
            clock.blocking().wait()?;
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_and_the_next_call_works() {
    if skipped_under_mpi("it is about a call that sends nothing") {
        return;
    }
    spawn(TransportKind::Thread, 2, |comm| {
        let usage = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Usage { .. })), "{outcome:?}");
        let (_clock, mut server) = begin(&comm, 0, 10, Add, ServerOptions::default())?;
        usage(server.blocking().push(0..3, &vector(&[0.0; 4])));
        usage(server.blocking().push(8..12, &vector(&[0.0; 4])));
        usage(server.blocking().pull(0..4, &mut testing::buffer(&[0f64; 4])).map(drop));
        usage(server.blocking().pull_cached(Range { start: 4, end: 0 }, &mut vector(&[])).map(drop));
        let mut busy = vector(&[0.0; 10]);
        let lent = busy.read(0..1)?;
        assert!(matches!(server.blocking().pull(0..10, &mut busy), Err(Error::Busy { .. })));
        drop(lent);
        let Pulled { clock, versions } = server.blocking().pull(0..10, &mut busy)?;
        assert_eq!((clock, versions), (0, vec![0, 0]));
        let other = Encoding::new(Arc::new(Half::F16)).with_feedback(Feedback::Difference);
        let options = ServerOptions { pushed: Some(other), ..ServerOptions::default() };
        usage(begin(&comm, 0, 10, Add, options).map(drop));
        comm.blocking().barrier()
    })
    .unwrap();
}

#[test]
fn using_a_server_after_its_service_was_closed_is_an_error() {
    if skipped_under_mpi("it is about a call that sends nothing") {
        return;
    }
    spawn(TransportKind::Tcp, 2, |comm| {
        let service = comm.block_on(Service::start(&comm))?;
        let clock = comm.block_on(Clock::start(&comm, &service, 0))?;
        let mut server = comm.block_on(Server::start(
            &comm,
            &service,
            &clock,
            &vector(&[0.0; 4]),
            Add,
            ServerOptions::default(),
        ))?;
        service.blocking().close()?;
        assert!(server.blocking().push(0..4, &vector(&[1.0; 4])).is_err());
        assert!(server.blocking().pull(0..4, &mut vector(&[1.0; 4])).is_err());
        clock.tick();
        assert!(clock.blocking().wait().is_err());
        Ok(())
    })
    .unwrap();
}
