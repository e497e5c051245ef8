//! Any bytes as a header: refused in few words, or read, written and read again as the same header.
#![no_main]

use kvshare::header::Header;
use kvshare::layout::{Geometry, TensorType};
use libfuzzer_sys::fuzz_target;

/// What an error may say at most: it goes to a log that others read.
const LONGEST_MESSAGE: usize = 1024;

fuzz_target!(|bytes: &[u8]| {
    let header = match Header::parse(bytes) {
        Ok(header) => header,
        Err(error) => return assert!(error.to_string().len() <= LONGEST_MESSAGE),
    };
    assert_eq!(Header::parse(&header.to_json()), Ok(header.clone()));

    let real: Vec<Option<u64>> = (0..header.descriptor_count()).map(|index| Some(4096 << (index % 20))).collect();
    if header.check_descriptors(&real).is_ok() {
        for region in &header.regions {
            let size = real[region.fd as usize].unwrap_or(u64::MAX);
            assert!(region.offset.checked_add(region.size).is_some_and(|end| end <= size));
        }
    }
    let geometry = Geometry::uniform(2, 64, 64, 256, TensorType::F16);
    let _ = header.compare(&geometry);
    let _ = header.clone().complete(&geometry.layout().expect("it is small"));
});
