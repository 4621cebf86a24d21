//! Leases: which may overlap, what keeps memory alive, and that borrowed memory always returns. Runs under Miri.

use super::*;

#[test]
fn buffers_are_zeroed_typed_and_aligned() {
    for dtype in DType::ALL {
        let buffer = Buffer::zeroed(dtype, 37).unwrap();
        let view = buffer.read(0..37).unwrap();
        assert_eq!(view.bytes(), vec![0; 37 * dtype.size()]);
        assert_eq!(view.bytes().as_ptr() as usize % ALIGNMENT, 0);
    }
    assert!(matches!(Buffer::zeroed(DType::F32, 1).unwrap().host::<i32>(), Err(Error::Usage { .. })));
}

#[test]
fn constant_elements_are_read_where_they_are_and_kept_as_long() {
    let owner = Arc::new(vec![1.5f32, 2.5]);
    let mut buffer = Buffer::constant(Arc::clone(&owner));
    let view = buffer.read(1..2).unwrap();
    assert_eq!(view.bytes().as_ptr(), owner[1..].as_ptr().cast());
    assert!(matches!(buffer.write_all(), Err(Error::Usage { .. })));
    assert!(buffer.idle_bytes().is_none() && buffer.host_mut::<f32>().is_err());
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 2);
    assert_eq!(view.bytes(), bytemuck::bytes_of(&2.5f32));
    drop(view);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert!(Buffer::constant::<f64, _>(Arc::new(Vec::new())).is_empty());
}

#[test]
fn empty_buffers_work() {
    let mut buffer = Buffer::zeroed(DType::F64, 0).unwrap();
    assert!(buffer.host::<f64>().unwrap().is_empty());
    assert!(buffer.host_mut::<f64>().unwrap().is_empty());
    Buffer::lend_mut::<f64, _>(&mut [], |empty| assert_eq!(empty.len(), 0));
}

#[test]
fn too_large_a_buffer_is_an_error() {
    assert!(matches!(Buffer::zeroed(DType::F64, usize::MAX / 2), Err(Error::Usage { .. })));
}

#[test]
fn readers_share_and_writers_exclude() {
    let mut buffer = Buffer::from_slice(&[1i32, 2, 3, 4]).unwrap();
    let first = buffer.read(0..2).unwrap();
    let second = buffer.read(1..3).unwrap();
    assert!(matches!(buffer.write(2..4), Err(Error::Busy { start: 8, end: 16, size: 16 })));
    let mut apart = buffer.write(3..4).unwrap();
    apart.bytes_mut()[0] = 9;
    assert!(matches!(buffer.host::<i32>(), Err(Error::Busy { .. })));
    drop((first, second, apart));
    assert_eq!(&*buffer.host::<i32>().unwrap(), [1, 2, 3, 9]);
    let reading = buffer.read(0..1).unwrap();
    assert!(matches!(buffer.host_mut::<i32>(), Err(Error::Busy { .. })));
    drop(reading);
    assert!(buffer.read(0..1).is_ok());
}

#[test]
fn ranges_outside_are_refused() {
    let buffer = Buffer::zeroed(DType::I64, 3).unwrap();
    assert!(matches!(buffer.read(2..4), Err(Error::Usage { .. })));
    assert!(matches!(buffer.write(usize::MAX - 1..usize::MAX), Err(Error::Usage { .. })));
    #[allow(clippy::reversed_empty_ranges, reason = "the test needs such a range")]
    let backwards = buffer.read(2..1);
    assert!(matches!(backwards, Err(Error::Usage { .. })));
}

#[test]
fn a_view_keeps_memory_alive_after_its_buffer() {
    let buffer = Buffer::from_slice(&[7u8; 100]).unwrap();
    let mut view = buffer.write(0..100).unwrap();
    drop(buffer);
    view.bytes_mut()[99] = 1;
    assert_eq!(view.bytes()[98..], [7, 1]);
}

#[test]
fn only_bytes_that_nobody_uses_are_had_without_a_lease() {
    let mut buffer = Buffer::from_slice(&[1u8, 2, 3]).unwrap();
    buffer.idle_bytes().unwrap()[1] = 7;
    for view in [buffer.read(0..1).map(drop), buffer.write(2..3).map(drop)] {
        view.unwrap();
    }
    let view = buffer.read(1..2).unwrap();
    assert!(buffer.idle_bytes().is_none());
    drop(view);
    assert_eq!(buffer.idle_bytes().unwrap(), [1, 7, 3]);
    Buffer::lend_mut(&mut [1u8], |buffer| assert!(buffer.idle_bytes().is_none(), "its owner counts leases"));
}

#[test]
fn lent_elements_are_changed_in_place() {
    let mut elements = [1.0f32, 2.0, 3.0];
    Buffer::lend_mut(&mut elements, |buffer| buffer.host_mut::<f32>().unwrap()[1] = 5.0);
    assert_eq!(elements, [1.0, 5.0, 3.0]);
    Buffer::lend(&elements, |buffer| {
        assert_eq!(&*buffer.host::<f32>().unwrap(), [1.0, 5.0, 3.0]);
        assert!(matches!(buffer.write(0..1), Err(Error::Usage { .. })));
    });
}

#[test]
fn a_lent_buffer_smuggled_out_is_dead() {
    let mut escaped = Buffer::zeroed(DType::U8, 1).unwrap();
    let mut elements = [1u8, 2];
    Buffer::lend_mut(&mut elements, |buffer| std::mem::swap(buffer, &mut escaped));
    assert!(matches!(escaped.read(0..1), Err(Error::Busy { .. })));
}

#[test]
fn lend_waits_for_a_view_on_another_thread() {
    let mut elements = [0u64.to_le_bytes(); 1][0];
    let helper = Buffer::lend_mut(&mut elements, |buffer| {
        let mut view = buffer.write(0..8).unwrap();
        std::thread::spawn(move || {
            std::thread::yield_now();
            view.bytes_mut().fill(3);
        })
    });
    assert_eq!(elements, [3; 8]);
    helper.join().unwrap();
}
