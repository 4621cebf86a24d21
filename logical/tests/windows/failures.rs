//! Failures of windows: refused calls, and the rank that errors name.

use super::*;

#[test]
fn ranks_that_differ_in_length_or_encoding_both_see_it() {
    let one = |comm: &Communicator| if comm.rank() == 1 { 13 } else { 12 };
    let codec = |comm: &Communicator| (comm.rank() == 1).then(|| half(Feedback::None));
    for transport in on_threads() {
        for differ in ["window(13 × f32)", "codec"] {
            let open = std::sync::Barrier::new(2);
            let errors = spawn(transport, 2, |comm| {
                let service = comm.block_on(Service::start(&comm))?;
                open.wait();
                let window = match differ {
                    "codec" => complete(&comm, &service, 12, codec(&comm)),
                    _ => complete(&comm, &service, one(&comm), None),
                };
                let error = window.map(drop).unwrap_err();
                assert!(service.blocking().close().is_err());
                Ok(error)
            });
            for error in errors.unwrap() {
                let text = error.to_string();
                assert!(text.contains("window(12 × f32)") && text.contains(differ), "{text}");
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    for (transport, ranks) in cases(&[2]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let usage =
                |error: Option<Error>| assert!(matches!(error, Some(Error::Usage { .. })), "{error:?}");
            let mine = testing::buffer(&[1f32; 4]);
            let create = |value: &Buffer, sources: &[usize], encoding| {
                usage(comm.block_on(Window::create(&comm, &service, value, sources, encoding)).err());
            };
            create(&mine, &[comm.rank()], None);
            create(&mine, &[2], None);
            create(&mine, &[1 - comm.rank(); 2], None);
            create(&mine, &[], Some(half(Feedback::Extrapolation)));
            create(&testing::buffer(&[1i32]), &[], None);
            create(&testing::buffer(&[1f64]), &[], Some(half(Feedback::None)));
            // Rank 0 gets the failure of rank 1, and not the reverse.
            let sources: &[usize] = if comm.rank() == 0 { &[1] } else { &[] };
            let window = comm.block_on(Window::create(&comm, &service, &mine, sources, None))?;
            let peer = 1 - comm.rank();
            if comm.rank() == 0 {
                usage(window.put(1.0, &[(peer, 1.0)]).blocking().err());
                usage(window.get(&[(peer, 1.0), (peer, 1.0)]).blocking().err());
            } else {
                usage(window.get(&[(peer, 1.0)]).blocking().err());
                usage(window.accumulate(1.0, &[(peer, 1.0), (peer, 1.0)]).blocking().err());
                usage(window.blocking().update(1.0, &[(peer, 1.0)], false).err());
                usage(window.blocking().load_neighbour(peer, &mut testing::buffer(&[0f32; 4])).err());
                for odd in [f64::NAN, f64::INFINITY] {
                    usage(window.put(odd, &[]).blocking().err());
                    usage(window.accumulate(1.0, &[(peer, odd)]).blocking().err());
                    usage(window.blocking().update(odd, &[], false).err());
                    usage(window.blocking().add(odd, &mine).err());
                }
                window.put(0.0, &[]).blocking()?;
                usage(window.blocking().estimate(&mut testing::buffer(&[0f32; 4])).err());
            }
            usage(window.blocking().load(&mut testing::buffer(&[0f32; 3])).err());
            usage(window.blocking().store(&testing::buffer(&[0f64; 4])).err());
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn a_rank_that_never_closes_is_named_at_the_deadline() {
    for transport in on_threads() {
        spawn(transport, 3, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            comm.blocking().barrier()?;
            comm.set_deadline(std::time::Duration::from_secs(3));
            if comm.rank() == 2 {
                while comm.world().health().verdict().is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                return Ok(());
            }
            let error = service.blocking().close().unwrap_err();
            let text = error.to_string();
            assert!(text.contains("rank 2 ("), "{text}");
            Ok(())
        })
        .unwrap();
    }
}

/// The memory for one receiver already contains its message, which will never be sent.
#[test]
fn what_cannot_be_told_to_all_ends_the_service() {
    for transport in on_threads() {
        let together = std::sync::Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Difference);
            let (window, _) = complete(&comm, &service, 5, Some(encoding))?;
            // No rank fails while others are still creating their part.
            together.wait();
            let outcome = if comm.rank() == 0 {
                window.blocking().store(&testing::buffer(&[f32::MAX; 5]))?;
                window.put(1.0, &[(1, 1.0)]).blocking()?;
                window.blocking().store(&testing::buffer(&[-f32::MAX; 5]))?;
                // Rank 2 has received nothing yet; for rank 1, the difference to the last value overflows.
                let refused = window.put(1.0, &[(2, 1.0), (1, 1.0)]).blocking().err();
                assert!(matches!(&refused, Some(Error::NotFinite { index: 0, .. })), "{refused:?}");
                window.put(1.0, &[(2, 1.0)]).blocking()
            } else {
                Ok(())
            };
            together.wait();
            Ok(outcome.and_then(|()| service.blocking().close()).unwrap_err())
        });
        for error in errors.unwrap() {
            assert!(error.to_string().contains("element 0"), "{transport}: {error}");
        }
    }
}

#[test]
fn what_cannot_be_encoded_is_named_and_not_sent() {
    for transport in on_threads() {
        spawn(transport, 2, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Error);
            let (window, others) = complete(&comm, &service, 500, Some(encoding))?;
            let to = weighted(&others, 1.0);
            window.put(0.5, &to).blocking()?;
            let mut mine = vec![1f32; 500];
            mine[123] = f32::NAN;
            window.blocking().store(&testing::buffer(&mine))?;
            comm.blocking().barrier()?;
            let sent = comm.world().traffic().bytes_sent();
            for refused in [window.put(0.5, &to).blocking().err(), window.accumulate(0.5, &to).blocking().err()] {
                let named = matches!(&refused, Some(Error::NotFinite { place, index: 123, .. }) if place.rank == comm.rank());
                assert!(named, "{refused:?}");
            }
            assert_eq!((comm.world().traffic().bytes_sent(), window.mass()), (sent, 0.5));
            // After the repair everything continues; not before all ranks have counted, since answers count, too.
            comm.blocking().barrier()?;
            window.blocking().store(&testing::buffer(&vec![2f32; 500]))?;
            window.put(0.5, &to).blocking()?;
            comm.blocking().barrier()?;
            assert_eq!(window.version(others[0]), Some(2));
            assert_eq!(neighbour(&window, others[0], 500), vec![2.0; 500]);
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn whoever_fetches_what_cannot_be_encoded_learns_where_it_is() {
    for transport in on_threads() {
        let stored = std::sync::Barrier::new(2);
        let errors = spawn(transport, 2, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let (window, others) =
                complete(&comm, &service, 500, Some(Encoding::new(Arc::new(MinMax8::default()))))?;
            if comm.rank() == 1 {
                let mut mine = vec![1f32; 500];
                mine[123] = f32::INFINITY;
                window.blocking().store(&testing::buffer(&mine))?;
            }
            // Not one of the communicator's, in which a rank might still be.
            stored.wait();
            let got = if comm.rank() == 0 { window.get(&weighted(&others, 1.0)).blocking() } else { Ok(()) };
            Ok(got.and_then(|()| service.blocking().close()).unwrap_err().to_string())
        });
        for text in errors.unwrap() {
            assert!(text.contains("element 123") && text.contains("rank 1 ("), "{text}");
        }
    }
}
