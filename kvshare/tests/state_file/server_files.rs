//! What a stock server saved is read to its last byte, passes validation, and is written again byte for byte.

use std::io::{Cursor, Read, Result, Seek, SeekFrom};

use kvshare::layout::TensorType;
use kvshare::state_file::{Expected, Half, Packing, ReadOptions, RowShape, Slot, StateFile, StateShape};

use super::support::{MemoryCache, sample, samples, shape};

#[test]
fn every_saved_slot_is_what_its_index_says() {
    for sample in samples() {
        let file = StateFile::parse(&sample.bytes, ReadOptions::default()).expect(&sample.name);
        let expected = Expected { tokens: Some(&sample.tokens), n_vocab: Some(49152), ..Expected::default() };
        file.validate(&expected).expect(&sample.name);
        assert_eq!(file.packing, Packing::Packed(vec![]), "{}", sample.name);
    }
}

#[test]
fn every_saved_slot_is_written_again_byte_for_byte() {
    for sample in samples() {
        let n_ctx = sample.tokens.len() as u64 + 3;
        let (file, cache) = MemoryCache::read_from(&sample.bytes, ReadOptions::default(), n_ctx);
        let mut written = Vec::new();
        file.write(&cache, &mut written).expect("nothing fails in memory");
        assert!(written == sample.bytes, "{} differs", sample.name);
    }
}

#[test]
fn a_file_made_from_a_prompt_is_the_one_a_server_saves_for_it() {
    let slot_1_of_2 = Slot { id: 1, n_stream: 2 };
    for (name, slot) in [("f16-fa-a.bin", Slot::default()), ("f16-fa-np2-slot1-a.bin", slot_1_of_2)] {
        let sample = sample(name);
        let read = StateFile::parse(&sample.bytes, ReadOptions::default()).expect(name);
        let made = StateFile::of_prompt(sample.tokens, shape(30, TensorType::F16, 192), slot).expect(name);
        assert_eq!(made, read, "{name}");
        assert_eq!(made.byte_length().expect(name), sample.bytes.len() as u64, "{name}");
    }
}

#[test]
fn a_servers_flags_show_in_the_geometry() {
    let layer = |tensor_type| RowShape { tensor_type, width: 192 };
    let (f16, q8_0) = (layer(TensorType::F16), layer(TensorType::Q8_0));
    let uniform = |k, v| StateShape::uniform(30, k, v);
    let cases = [
        ("f16-fa-b.bin", uniform(f16, f16)),
        ("f16-nofa-b.bin", StateShape { v_trans: true, ..uniform(f16, f16) }),
        ("q8-fa-b.bin", StateShape { n_rot_k: 64, n_rot_v: 64, ..uniform(q8_0, q8_0) }),
        ("kq8-nofa-b.bin", StateShape { v_trans: true, n_rot_k: 64, ..uniform(q8_0, f16) }),
    ];
    for (name, shape) in cases {
        let file = StateFile::parse(&sample(name).bytes, ReadOptions::default()).expect(name);
        assert_eq!(file.only_stream().expect(name).shape, shape, "{name}");
    }
}

#[test]
fn a_transposed_and_a_plain_file_of_one_prompt_hold_nearly_the_same_values() {
    let read = |name| MemoryCache::read_from(&sample(name).bytes, ReadOptions::default(), 5).1;
    let (plain, transposed) = (read("f16-fa-a.bin"), read("f16-nofa-a.bin"));
    let run = kvshare::state_file::Run { stream: 0, layer: 0, half: Half::V, cells: 4..5 };
    let half = |bytes: &[u8]| half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    for channel in 0..192 {
        let mut element = [0; 2];
        kvshare::state_file::CacheSource::read_channel(&transposed, &run, channel, &mut element).expect("in memory");
        let row = plain.row(0, Half::V, 4);
        let difference = half(&row[2 * channel as usize..]) - half(&element);
        assert!(difference.abs() < 0.01, "channel {channel} differs by {difference}");
    }
}

/// A reader that counts what is read from it.
struct Counting<R> {
    reader: R,
    read: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.reader.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl<R: Seek> Seek for Counting<R> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.reader.seek(to)
    }
}

#[test]
fn walking_skips_the_rows() {
    let file = StateFile::of_prompt((0..64).collect(), shape(2, TensorType::F32, 65536), Slot::default())
        .expect("one slot of one");
    let bytes = super::support::written(&file);
    let mut reader = Counting { reader: Cursor::new(&bytes), read: 0 };
    assert_eq!(StateFile::walk(&mut reader, ReadOptions::default()).expect("a good file"), file);
    assert!(reader.read < 100_000, "{} bytes of {} were read", reader.read, bytes.len());
}
