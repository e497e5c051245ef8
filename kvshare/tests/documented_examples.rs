//! What the book gives other implementations to run, this one runs, too: the layout's vectors and the example message.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kvshare::header::Header;
use kvshare::layout::{Layout, Tensor};
use serde_json::Value;

fn document(name: &str) -> Value {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn tensor(value: &Value) -> Tensor {
    let ne: Vec<u64> = value["ne"].as_array().unwrap().iter().map(|ne| ne.as_u64().unwrap()).collect();
    let (name, tensor_type) = (value["name"].as_str().unwrap(), value["type"].as_str().unwrap());
    let tensor = Tensor::new(name, tensor_type.parse().unwrap(), &ne).unwrap();
    match value.get("alloc") {
        Some(alloc) => tensor.with_allocation(alloc.as_u64().unwrap()).unwrap(),
        None => tensor,
    }
}

#[test]
fn every_layout_vector_of_the_book_holds() {
    let vectors = document("layout-vectors.json");
    let vectors = vectors["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 30, "{}", vectors.len());
    for vector in vectors {
        let groups = vector["groups"].as_array().unwrap().iter();
        let groups = groups.map(|group| group.as_array().unwrap().iter().map(tensor).collect());
        let layout = Layout::place(groups);
        let name = &vector["name"];
        let chunks: Vec<(u64, String, u64)> =
            layout.chunks().iter().map(|chunk| (chunk.size, chunk.hash.to_string(), chunk.group.into())).collect();
        let expected = vector["chunks"].as_array().unwrap().iter();
        let expected: Vec<(u64, String, u64)> = expected
            .map(|chunk| {
                let hash = chunk["hash"].as_str().unwrap().to_owned();
                (chunk["size"].as_u64().unwrap(), hash, chunk["group"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(chunks, expected, "{name}");
        let places: Vec<(u64, u64)> =
            layout.tensors().iter().map(|placed| (placed.region as u64, placed.offset)).collect();
        let expected = vector["tensors"].as_array().unwrap().iter();
        let expected: Vec<(u64, u64)> =
            expected.map(|tensor| (tensor["region"].as_u64().unwrap(), tensor["offset"].as_u64().unwrap())).collect();
        assert_eq!(places, expected, "{name}");
    }
}

#[test]
fn the_example_message_of_the_protocol_is_read_and_written() {
    let example = document("message-example.json");
    let bytes = example["header"].as_str().unwrap().as_bytes();
    let header = Header::parse(bytes).unwrap();
    assert_eq!(header.canonical_text(), example["digest_text"].as_str().unwrap());
    assert_eq!(header.digest(), example["digest"].as_str().unwrap());

    let (ours, theirs) = UnixStream::pair().unwrap();
    let region = std::fs::File::open("/dev/zero").unwrap();
    kvshare::wire::send(&ours, bytes, &[region.as_fd()], Instant::now() + Duration::from_secs(10)).unwrap();
    drop(ours);
    let mut crossed = Vec::new();
    std::io::Read::read_to_end(&mut &theirs, &mut crossed).unwrap();
    let hex: String = crossed.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, example["message"].as_str().unwrap());
}
