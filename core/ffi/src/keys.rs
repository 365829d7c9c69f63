//! Keys as they cross the boundary: for each a 16-bit big-endian length, then its UTF-8.

use ticketing_client::TicketError;

/// Takes the keys apart. What a key may be is for the client to say (C5).
pub(crate) fn decode(mut bytes: &[u8]) -> Result<Vec<&str>, TicketError> {
    let mut keys = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((key, rest)) = rest.split_at_checked(length) else {
            return Err(invalid("keys", "the encoded keys end in the middle of one"));
        };
        keys.push(utf8("key", key)?);
        bytes = rest;
    }
    match bytes.is_empty() {
        true => Ok(keys),
        false => Err(invalid(
            "keys",
            "the encoded keys end in the middle of a length",
        )),
    }
}

pub(crate) fn utf8<'a>(argument: &'static str, bytes: &'a [u8]) -> Result<&'a str, TicketError> {
    std::str::from_utf8(bytes).map_err(|_| invalid(argument, "it is not valid UTF-8"))
}

fn invalid(argument: &'static str, detail: &str) -> TicketError {
    TicketError::InvalidInput {
        argument,
        detail: detail.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_keys_come_apart_as_they_were_put_together() {
        assert_eq!(decode(b"").unwrap(), Vec::<&str>::new());
        assert_eq!(decode(b"\0\0").unwrap(), [""]);
        assert_eq!(decode(b"\0\x01a\0\x02\xc3\xa9").unwrap(), ["a", "é"]);
    }

    #[test]
    fn c5_bytes_that_are_no_keys_are_refused() {
        let argument = |bytes| match decode(bytes).unwrap_err() {
            TicketError::InvalidInput { argument, .. } => argument,
            other => panic!("{other:?}"),
        };
        assert_eq!(argument(b"\0"), "keys");
        assert_eq!(argument(b"\0\x02a"), "keys");
        // A lone surrogate, as some languages would encode it.
        assert_eq!(argument(b"\0\x03\xed\xa0\xbd"), "key");
    }
}
