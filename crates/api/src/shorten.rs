//! Texts cut to a length that a message can show.

/// The longest value in a message, in bytes.
const MAX_SHOWN: usize = 60;

/// Cuts a text to the length of a value in a message.
pub(crate) fn shortened(text: &str) -> String {
    shortened_to(MAX_SHOWN, text)
}

/// Cuts a text to `bytes` at most, at the end of a character.
pub(crate) fn shortened_to(bytes: usize, text: &str) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes)])
}
