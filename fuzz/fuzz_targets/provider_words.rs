//! Any bytes as a provider's arguments, its tokens and its result line.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use kvshare::provider::{Arguments, ResultLine, Route, format_tokens, parse_tokens};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let arguments = bytes.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec()));
    match Arguments::parse(arguments) {
        Ok(Arguments { route: Route::Shared { fds, .. }, .. }) => {
            assert!(!fds.is_empty() && fds.iter().all(|fd| *fd >= 3));
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(tokens) = parse_tokens(bytes) {
        assert_eq!(parse_tokens(format_tokens(&tokens).as_bytes()).expect("they were read once"), tokens);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<ResultLine>() {
        Ok(line) => assert_eq!(line.to_string().parse::<ResultLine>(), Ok(line)),
        Err(error) => assert!(error.to_string().len() < 1024),
    }
});
