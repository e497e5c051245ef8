//! Caches of every type, order and number of streams: what is written is read again, to the last byte.

use std::io::Cursor;

use kvshare::layout::TensorType;
use kvshare::state_file::{
    Cell, CellExtension, LayerShape, Medium, Packing, ReadOptions, RowShape, StateFile, StateShape, Stream,
};
use proptest::prelude::*;

use super::support::{MemoryCache, shape};

fn any_plane(v_trans: bool) -> impl Strategy<Value = RowShape> {
    let types = TensorType::ALL.into_iter().filter(|tensor_type| !(v_trans && tensor_type.is_quantized()));
    (proptest::sample::select(types.collect::<Vec<_>>()), 1..4_u32)
        .prop_map(|(tensor_type, blocks)| RowShape { tensor_type, width: blocks * 32 })
}

fn any_shape() -> impl Strategy<Value = StateShape> {
    (any::<bool>(), any::<u32>(), any::<u32>()).prop_flat_map(|(v_trans, n_rot_k, n_rot_v)| {
        let layer = (any_plane(false), any_plane(v_trans)).prop_map(|(k, v)| LayerShape { k, v });
        proptest::collection::vec(layer, 1..4).prop_map(move |layers| StateShape { layers, v_trans, n_rot_k, n_rot_v })
    })
}

/// The streams of one cache, which are all alike.
fn any_streams(m_rope: bool) -> impl Strategy<Value = Vec<Option<Stream>>> {
    let cell = any::<[i32; 5]>().prop_map(move |[position, seq_id, x, y, token]| {
        let extension = m_rope.then_some(CellExtension { x, y, token });
        Cell { position, seq_id, extension }
    });
    let streams = proptest::collection::vec(proptest::option::of(proptest::collection::vec(cell, 1..6)), 1..4);
    (streams, any_shape()).prop_map(|(streams, shape)| {
        let stream = |cells| Stream { cells, shape: shape.clone() };
        streams.into_iter().map(|cells| cells.map(stream)).collect()
    })
}

fn any_packing() -> impl Strategy<Value = Packing> {
    let medium =
        (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..9)).prop_map(|(start, bytes)| Medium { start, bytes });
    prop_oneof![Just(Packing::Plain), proptest::collection::vec(medium, 0..3).prop_map(Packing::Packed)]
}

fn any_file(m_rope: bool) -> impl Strategy<Value = StateFile> {
    let tokens = proptest::collection::vec(0..i32::MAX, 0..6);
    (tokens, any_packing(), any_streams(m_rope)).prop_map(|(tokens, packing, streams)| StateFile {
        tokens,
        packing,
        streams,
    })
}

/// Writes `file` from a cache whose tensors have cells to spare, reads it into another, and writes that again.
fn there_and_back(file: &StateFile, m_rope: bool) {
    let n_ctx = 7;
    let cache = MemoryCache::for_file(file, n_ctx, |index| (index % 251) as u8);
    let mut first = Vec::new();
    file.write(&cache, &mut first).expect("nothing fails in memory");
    assert_eq!(file.byte_length().expect("it was written"), first.len() as u64);

    let read = StateFile::parse(&first, ReadOptions { m_rope }).expect("we wrote it");
    assert_eq!(&read, file);
    let mut copy = MemoryCache::for_file(file, n_ctx + 2, |_| 0xee);
    read.scatter(Cursor::new(&first), &mut copy).expect("nothing fails in memory");
    let mut second = Vec::new();
    read.write(&copy, &mut second).expect("nothing fails in memory");
    assert!(first == second, "the second file differs");
}

proptest! {
    #[test]
    fn a_cache_goes_through_a_file_unchanged(file in any_file(false)) {
        there_and_back(&file, false);
    }

    #[test]
    fn an_m_rope_cache_goes_through_a_file_unchanged(file in any_file(true)) {
        there_and_back(&file, true);
    }
}

#[test]
fn rows_beyond_one_piece_keep_their_order() {
    for v_trans in [false, true] {
        // Rows of 400 000 bytes, of which two fit in a piece; and channels of 1.2 MB, which are cut.
        for (n_cells, width) in [(5, 100_000), (300_000, 2)] {
            let shape = StateShape { v_trans, ..shape(1, TensorType::F32, width) };
            let file = StateFile::of_prompt((0..n_cells).collect(), shape, Default::default()).expect("a slot");
            let cache = MemoryCache::for_file(&file, n_cells as u64, |index| (index % 251) as u8);
            let mut bytes = Vec::new();
            file.write(&cache, &mut bytes).expect("nothing fails in memory");
            let (_, copy) = MemoryCache::read_from(&bytes, ReadOptions::default(), n_cells as u64);
            assert!(copy == cache, "v_trans {v_trans}, {n_cells} cells: rows moved");
        }
    }
}
