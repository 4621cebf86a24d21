//! The warning about a program that waits for its device: given once, for all threads and waits.

use hexagram_physical::Buffer;
use hexagram_physical::testing::in_own_process;
use hexagram_physical::testing::late::Late;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn access_to_a_devices_memory_warns_once_in_a_process() {
    in_own_process("host_access::access_to_a_devices_memory_warns_once_in_a_process", || {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        let warnings = || {
            let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            log.lines()
                .filter(|line| line.contains("WARN") && line.contains("the host reads or writes memory"))
                .count()
        };
        let mut host = Buffer::from_slice(&[1.0f32]).unwrap();
        host.host_mut::<f32>().unwrap()[0] += *host.copied().unwrap().host::<f32>().unwrap().first().unwrap();
        let devices = [Late::new(0), Late::new(0)];
        let mut buffers =
            devices.each_ref().map(|late| Buffer::from_slice_on(&late.queue(), &[1.0f32]).unwrap());
        buffers[0].write_all().unwrap().scale(2.0).unwrap();
        assert_eq!(warnings(), 0, "neither host memory nor work of a device has anybody wait");
        std::thread::scope(|scope| {
            for buffer in &mut buffers {
                scope.spawn(|| (0..3).for_each(|_| buffer.host_mut::<f32>().unwrap()[0] += 1.0));
            }
        });
        assert_eq!(buffers.map(|buffer| buffer.host::<f32>().unwrap()[0]), [5.0, 4.0]);
        assert_eq!(warnings(), 1);
    });
}
