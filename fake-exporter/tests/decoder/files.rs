//! Save, restore and erase: a slot comes back as it was, or empty.

use std::fs;

use serde_json::{Value, json};

use super::server::{CHECKER, Server};

const TOKENS: [i32; 6] = [72, 101, 108, 108, 111, 33];

fn restore(name: &str) -> (&'static str, Value) {
    ("/slots/0?action=restore", json!({"filename": name, "leave_one_token": true}))
}

#[test]
fn a_slot_that_was_saved_and_erased_is_restored() {
    for kind in [&[][..], &["-fa", "off"], &["-ctk", "f32", "-ctv", "f32"]] {
        let server = Server::checker(kind);
        let cold = server.ok("/completion", json!({"prompt": TOKENS, "n_predict": 1}));
        assert_eq!((&cold["timings"]["prompt_n"], &cold["tokens_cached"]), (&json!(6), &json!(6)));
        let saved = server.action("save", json!({"filename": "a.bin"}));
        let length = fs::metadata(server.directory().join("a.bin")).unwrap().len();
        assert_eq!((&saved["n_saved"], &saved["n_written"]), (&json!(6), &json!(length)));

        assert_eq!(server.action("erase", json!(null)), json!({"id_slot": 0, "n_erased": 6}));
        let cold = server.ok("/completion", json!({"prompt": TOKENS, "n_predict": 1}));
        assert_eq!(cold["timings"]["cache_n"], 0);
        server.action("erase", json!({}));

        let restored = server.action("restore", json!({"filename": "a.bin"}));
        assert_eq!((&restored["n_restored"], &restored["n_read"]), (&json!(6), &json!(length)));
        let warm = server.complete(&[&TOKENS[..], &[7]].concat());
        assert_eq!((&warm["timings"]["cache_n"], &warm["timings"]["prompt_n"]), (&json!(6), &json!(1)));
        assert_eq!(warm["content"], "every element of 7 positions in 2 layers is right");
        server.assert_no_descriptor_leaked();
    }
}

#[test]
fn a_file_that_cannot_be_restored_leaves_the_slot_empty() {
    let server = Server::checker(&[]);
    let other = Server::checker(&["-fa", "off"]);
    let saved_by = |server: &Server| {
        server.ok("/completion", json!({"prompt": TOKENS, "n_predict": 1}));
        server.action("save", json!({"filename": "a.bin"}));
        fs::read(server.directory().join("a.bin")).unwrap()
    };
    let good = saved_by(&server);
    let file = |name: &str, bytes: &[u8]| fs::write(server.directory().join(name), bytes).unwrap();
    file("empty", b"");
    file("garbage", &[7; 1000]);
    file("cut", &good[..good.len() - 1]);
    file("long", &[&good[..], b"x"].concat());
    file("transposed", &saved_by(&other));
    fs::create_dir(server.directory().join("directory")).unwrap();

    for name in ["missing", "empty", "garbage", "cut", "long", "transposed", "directory"] {
        server.action("restore", json!({"filename": "a.bin"}));
        let (path, body) = restore(name);
        let expected = json!({
            "code": 400, "type": "invalid_request_error",
            "message": "Unable to restore slot: No available space in KV cache or invalid slot save file",
        });
        assert_eq!(server.refused(path, body), expected, "{name}");
        assert_eq!(server.action("erase", json!({}))["n_erased"], 0, "{name}");
    }
    server.assert_no_descriptor_leaked();
}

#[test]
fn a_name_that_is_a_path_is_refused_and_the_slot_keeps_what_it_held() {
    let server = Server::checker(&[]);
    server.ok("/completion", json!({"prompt": TOKENS, "n_predict": 1}));
    let long = "x".repeat(256);
    for name in ["", "sub/a.bin", "/etc/passwd", "..", "a:b", "a.bin ", &long] {
        for action in ["save", "restore"] {
            let error = server.refused(&format!("/slots/0?action={action}"), json!({"filename": name}));
            assert_eq!(error["message"], "Invalid filename", "{name:?}");
        }
    }
    for (body, expected) in [(json!({}), "\"filename\" is required"), (json!({"filename": 1}), "filename: ")] {
        let error = server.refused("/slots/0?action=save", body);
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
    assert_eq!(server.action("erase", json!({}))["n_erased"], 6);
}

#[test]
fn slot_numbers_wrap_and_other_actions_are_invalid() {
    let server = Server::start(&CHECKER);
    for slot in ["9", "-1"] {
        assert_eq!(server.ok(&format!("/slots/{slot}?action=erase"), json!({}))["n_erased"], 0);
    }
    for (path, expected) in [
        ("/slots/x?action=erase", "Invalid slot ID"),
        ("/slots/0?action=copy", "Invalid action"),
        ("/slots/0", "Invalid action"),
    ] {
        let error = server.refused(path, json!({}));
        assert_eq!((&error["code"], &error["message"]), (&json!(400), &json!(expected)));
    }
}
