//! MessagePack, as much of it as messages about load need.
//!
//! By hand, because a value that cannot be read must be stepped over so that the others around it can be: what crates offer
//! for that panics on extension types. Nothing is allocated here, whatever length a message claims.

use thiserror::Error;

/// A message that is not the MessagePack expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("byte {at}: expected {expected}")]
#[non_exhaustive]
pub struct MessagePackError {
    /// Where the offending value begins.
    pub at: usize,
    /// What was expected there.
    pub expected: &'static str,
}

/// Reads values from the front of a message.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    at: usize,
}

/// What a value begins with: all of a number, but of the others only how much follows.
enum Head {
    Nil,
    Bool(bool),
    Uint(u64),
    Negative,
    Float(f64),
    Bytes(u32),
    Extension(u32),
    Array(u32),
    Map(u32),
}

impl<'a> Reader<'a> {
    /// Reads `message`, whose first byte counts as number `at` in errors.
    pub(crate) fn new(message: &'a [u8], at: usize) -> Self {
        Self { rest: message, at }
    }

    /// Bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn error(&self, expected: &'static str) -> MessagePackError {
        MessagePackError {
            at: self.at,
            expected,
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], MessagePackError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| self.error("more bytes"))?;
        self.rest = rest;
        self.at += count;
        Ok(taken)
    }

    /// A big-endian number of `count` bytes, which are 8 at most.
    fn big_endian(&mut self, count: usize) -> Result<u64, MessagePackError> {
        let bytes = self.take(count)?;
        Ok(bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }

    /// The length of what follows, in 1, 2 or 4 bytes.
    fn length(&mut self, bytes: usize) -> Result<u32, MessagePackError> {
        Ok(self.big_endian(bytes)? as u32)
    }

    fn signed(&mut self, bytes: u32) -> Result<Head, MessagePackError> {
        let number = self.big_endian(bytes as usize)?;
        let negative = number >> (8 * bytes - 1) == 1;
        Ok(if negative {
            Head::Negative
        } else {
            Head::Uint(number)
        })
    }

    fn head(&mut self) -> Result<Head, MessagePackError> {
        let start = self.clone();
        let marker = self.take(1)?[0];
        Ok(match marker {
            0x00..=0x7f => Head::Uint(marker.into()),
            0x80..=0x8f => Head::Map((marker & 0x0f).into()),
            0x90..=0x9f => Head::Array((marker & 0x0f).into()),
            0xa0..=0xbf => Head::Bytes((marker & 0x1f).into()),
            NIL => Head::Nil,
            0xc1 => return Err(start.error("a value")),
            0xc2 | 0xc3 => Head::Bool(marker == 0xc3),
            0xc4..=0xc6 => Head::Bytes(self.length(1 << (marker - 0xc4))?),
            0xc7..=0xc9 => Head::Extension(self.length(1 << (marker - 0xc7))?),
            0xca => Head::Float(f32::from_bits(self.length(4)?).into()),
            0xcb => Head::Float(f64::from_bits(self.big_endian(8)?)),
            0xcc..=0xcf => Head::Uint(self.big_endian(1 << (marker - 0xcc))?),
            0xd0..=0xd3 => self.signed(1 << (marker - 0xd0))?,
            0xd4..=0xd8 => Head::Extension(1 << (marker - 0xd4)),
            0xd9..=0xdb => Head::Bytes(self.length(1 << (marker - 0xd9))?),
            0xdc | 0xdd => Head::Array(self.length(2 << (marker - 0xdc))?),
            0xde | 0xdf => Head::Map(self.length(2 << (marker - 0xde))?),
            0xe0..=0xff => Head::Negative,
        })
    }

    /// Steps over a value, however deep.
    pub(crate) fn skip(&mut self) -> Result<(), MessagePackError> {
        // Each takes a byte at least, so this ends.
        let mut values = 1_u64;
        while values > 0 {
            values -= 1;
            match self.head()? {
                Head::Bytes(length) => drop(self.take(length as usize)?),
                Head::Extension(length) => drop(self.take(length as usize + 1)?),
                Head::Array(length) => values = values.saturating_add(length.into()),
                Head::Map(length) => values = values.saturating_add(2 * u64::from(length)),
                Head::Nil | Head::Bool(_) | Head::Uint(_) | Head::Negative | Head::Float(_) => {}
            }
        }
        Ok(())
    }

    /// Reads a value with `wanted`, which says whether it is of the kind expected; if it is not, nothing is read.
    fn expect<T>(
        &mut self,
        expected: &'static str,
        wanted: impl FnOnce(Head, &mut Self) -> Result<Option<T>, MessagePackError>,
    ) -> Result<T, MessagePackError> {
        let start = self.clone();
        let head = self.head()?;
        match wanted(head, self)? {
            Some(value) => Ok(value),
            None => {
                *self = start;
                Err(self.error(expected))
            }
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MessagePackError> {
        self.expect("a number of 64 bits", |head, _| match head {
            Head::Uint(number) => Ok(Some(number)),
            _ => Ok(None),
        })
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MessagePackError> {
        self.expect("a number of 32 bits", |head, _| match head {
            Head::Uint(number) => Ok(u32::try_from(number).ok()),
            _ => Ok(None),
        })
    }

    /// One of either width: not every writer has the narrow one.
    pub(crate) fn f32(&mut self) -> Result<f32, MessagePackError> {
        self.expect("a float", |head, _| match head {
            Head::Float(number) => Ok(Some(number as f32)),
            _ => Ok(None),
        })
    }

    pub(crate) fn bool(&mut self) -> Result<bool, MessagePackError> {
        self.expect("a bool", |head, _| match head {
            Head::Bool(value) => Ok(Some(value)),
            _ => Ok(None),
        })
    }

    /// Text or bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], MessagePackError> {
        self.expect("text or bytes", |head, reader| match head {
            Head::Bytes(length) => Ok(Some(reader.take(length as usize)?)),
            _ => Ok(None),
        })
    }

    /// How many values an array claims to have.
    pub(crate) fn array(&mut self) -> Result<u32, MessagePackError> {
        self.expect("an array", |head, _| match head {
            Head::Array(length) => Ok(Some(length)),
            _ => Ok(None),
        })
    }

    /// How many keys a map claims to have.
    pub(crate) fn map(&mut self) -> Result<u32, MessagePackError> {
        self.expect("a map", |head, _| match head {
            Head::Map(length) => Ok(Some(length)),
            _ => Ok(None),
        })
    }

    /// What `read` reads, unless there is a nil.
    pub(crate) fn unless_nil<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, MessagePackError>,
    ) -> Result<Option<T>, MessagePackError> {
        if self.rest.first() == Some(&NIL) {
            self.take(1)?;
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// An array that stands for a struct.
    pub(crate) fn fields(&mut self) -> Result<Fields<'_, 'a>, MessagePackError> {
        let left = self.array()?;
        Ok(Fields { reader: self, left })
    }

    /// An array of what `read` reads, of which none takes less than `least` bytes.
    pub(crate) fn list<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, MessagePackError>,
    ) -> Result<Vec<T>, MessagePackError> {
        let length = self.array()? as usize;
        let possible = self.remaining() / least;
        if length > possible {
            return Err(self.error("as many values as the array has"));
        }
        let mut values = Vec::with_capacity(length);
        for _ in 0..length {
            values.push(read(self)?);
        }
        Ok(values)
    }
}

/// The fields of a struct, in order. Fewer than expected: the rest is absent; more: a newer peer added some.
#[derive(Debug)]
pub(crate) struct Fields<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: u32,
}

impl<'a> Fields<'_, 'a> {
    /// A reader at the next field, which must be there.
    pub(crate) fn next(&mut self) -> Result<&mut Reader<'a>, MessagePackError> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| self.reader.error("more fields"))?;
        Ok(self.reader)
    }

    /// What `read` reads, if the next field is there and is not nil.
    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, MessagePackError>,
    ) -> Result<Option<T>, MessagePackError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.next()?.unless_nil(read)
    }

    /// Steps over the fields that are not known here.
    pub(crate) fn finish(self) -> Result<(), MessagePackError> {
        for _ in 0..self.left {
            self.reader.skip()?;
        }
        Ok(())
    }
}

/// Appends values to a message, each in the shortest form.
pub(crate) trait Write {
    fn nil(&mut self);
    fn bool(&mut self, value: bool);
    fn uint(&mut self, number: u64);
    fn f32(&mut self, number: f32);
    fn text(&mut self, text: &str);
    fn bytes(&mut self, bytes: &[u8]);
    /// An array, whose values follow.
    fn array(&mut self, length: usize);
    /// A map of at most 15 keys, which follow, each with its value behind it.
    fn map(&mut self, keys: u8);

    /// What `write` writes, or nil.
    fn or_nil<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }
}

impl Write for Vec<u8> {
    fn nil(&mut self) {
        self.push(NIL);
    }

    fn bool(&mut self, value: bool) {
        self.push(0xc2 + u8::from(value));
    }

    fn uint(&mut self, number: u64) {
        match number {
            0..=0x7f => self.push(number as u8),
            0x80..=0xff => self.extend([0xcc, number as u8]),
            0x100..=0xffff => {
                self.push(0xcd);
                self.extend((number as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.push(0xce);
                self.extend((number as u32).to_be_bytes());
            }
            _ => {
                self.push(0xcf);
                self.extend(number.to_be_bytes());
            }
        }
    }

    fn f32(&mut self, number: f32) {
        self.push(0xca);
        self.extend(number.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        match text.len() {
            length @ 0..=0x1f => self.push(0xa0 | length as u8),
            length => {
                self.push(0xdb);
                self.extend((length as u32).to_be_bytes());
            }
        }
        self.extend(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        match bytes.len() {
            length @ 0..=0xff => self.extend([0xc4, length as u8]),
            length => {
                self.push(0xc6);
                self.extend((length as u32).to_be_bytes());
            }
        }
        self.extend(bytes);
    }

    fn array(&mut self, length: usize) {
        match length {
            0..=0x0f => self.push(0x90 | length as u8),
            0x10..=0xffff => {
                self.push(0xdc);
                self.extend((length as u16).to_be_bytes());
            }
            _ => {
                self.push(0xdd);
                self.extend((length as u32).to_be_bytes());
            }
        }
    }

    fn map(&mut self, keys: u8) {
        debug_assert!(keys < 0x10);
        self.push(0x80 | keys);
    }
}

const NIL: u8 = 0xc0;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut message = Vec::new();
        write(&mut message);
        message
    }

    /// What another implementation writes.
    fn theirs<T: serde::Serialize + ?Sized>(value: &T) -> Vec<u8> {
        rmp_serde::to_vec(value).unwrap()
    }

    #[test]
    fn numbers_are_as_short_as_others_write_them_and_read_back() {
        for shift in 0..u64::BITS {
            for number in [u64::MAX >> shift, (1 << shift) - 1, 1 << shift] {
                let message = written(|to| to.uint(number));
                assert_eq!(message, theirs(&number), "{number}");
                assert_eq!(Reader::new(&message, 0).u64(), Ok(number));
                let narrow = Reader::new(&message, 0).u32();
                assert_eq!(narrow.ok(), u32::try_from(number).ok());
            }
        }
        for number in [0.0, -0.0, 0.1, f32::MAX, f32::from_bits(1)] {
            let message = written(|to| to.f32(number));
            assert_eq!(message, theirs(&number));
            let read = Reader::new(&message, 0).f32().unwrap();
            assert_eq!(read.to_bits(), number.to_bits());
            let wide = theirs(&f64::from(number));
            let read = Reader::new(&wide, 0).f32().unwrap();
            assert_eq!(read.to_bits(), number.to_bits());
        }
    }

    #[test]
    fn signed_numbers_are_read_in_every_width() {
        for shift in 0..i64::BITS {
            for number in [i64::MIN >> shift, i64::MAX >> shift] {
                let message = theirs(&number);
                let mut reader = Reader::new(&message, 0);
                let positive = reader.clone().u64();
                assert_eq!(positive.ok(), u64::try_from(number).ok(), "{number}");
                reader.skip().unwrap();
                assert_eq!(reader.remaining(), 0, "{number}");
            }
        }
        // Positive, but in a signed form.
        for five in [
            &[0xd0, 5][..],
            &[0xd1, 0, 5],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
        ] {
            assert_eq!(Reader::new(five, 0).u64(), Ok(5));
        }
        assert!(Reader::new(&[0xd0, 0x80], 0).u64().is_err());
    }

    #[test]
    fn texts_bytes_and_arrays_of_every_length_read_back() {
        for length in [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
            let text = "x".repeat(length);
            for message in [written(|to| to.text(&text)), theirs(&text)] {
                assert_eq!(Reader::new(&message, 0).bytes(), Ok(text.as_bytes()));
            }
            let message = written(|to| to.bytes(text.as_bytes()));
            assert_eq!(Reader::new(&message, 0).bytes(), Ok(text.as_bytes()));
            let numbers = vec![7_u8; length];
            let mut message = written(|to| to.array(length));
            message.extend(&numbers);
            assert_eq!(message, theirs(&numbers));
            let read = Reader::new(&message, 0).list(1, Reader::u32).unwrap();
            assert_eq!(read, vec![7; length]);
        }
    }

    #[test]
    fn every_kind_of_value_is_stepped_over() {
        let values: [&[u8]; 22] = [
            &[0xc0],
            &[0xc3],
            &[0x7f],
            &[0xff],
            &[0xcc, 1],
            &[0xcf, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xd1, 1, 2],
            &[0xca, 1, 2, 3, 4],
            &[0xcb, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xa1, b'x'],
            &[0xda, 0, 2, b'x', b'y'],
            &[0xc4, 1, 0],
            &[0xc6, 0, 0, 0, 1, 0],
            &[0xd4, 1, 2],
            &[0xd6, 1, 2, 3, 4, 5],
            &[0xc7, 2, 1, 2, 3],
            &[0xc9, 0, 0, 0, 1, 1, 2],
            &[0x92, 0x92, 1, 2, 0x90],
            &[0xdc, 0, 1, 0xc0],
            &[0xdf, 0, 0, 0, 1, 0xa0, 0x91, 3],
            &[0x82, 1, 2, 3, 4],
            &[0x91, 0x91, 0x91, 0x91, 0x80],
        ];
        for value in values {
            let mut message = value.to_vec();
            message.push(42);
            let mut reader = Reader::new(&message, 0);
            reader.skip().unwrap();
            assert_eq!(reader.u64(), Ok(42), "{value:x?}");
            for length in 0..value.len() {
                let cut = Reader::new(&value[..length], 0).skip();
                assert_eq!(cut.unwrap_err().expected, "more bytes", "{value:x?}");
            }
        }
    }

    #[test]
    fn depth_and_claimed_lengths_cost_nothing() {
        let deep = vec![0x91; 1 << 20];
        assert!(Reader::new(&deep, 0).skip().is_err());
        let huge = [0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        assert!(Reader::new(&huge, 0).skip().is_err());
        assert!(Reader::new(&huge, 0).list(1, Reader::u64).is_err());
        assert_eq!(Reader::new(&huge, 0).array(), Ok(u32::MAX));
    }

    #[test]
    fn an_error_names_the_place_and_what_was_expected_there() {
        let message = [0x93, 1, 0xa1, b'x', 3];
        let mut reader = Reader::new(&message, 10);
        let mut fields = reader.fields().unwrap();
        assert_eq!(fields.next().unwrap().u64(), Ok(1));
        let error = fields.next().unwrap().u64().unwrap_err();
        assert_eq!(error.to_string(), "byte 12: expected a number of 64 bits");
        // It is still there.
        assert_eq!(reader.bytes(), Ok(&b"x"[..]));
        assert_eq!(reader.u64(), Ok(3));
        let error = reader.u64().unwrap_err();
        assert_eq!(error.to_string(), "byte 15: expected more bytes");
        let error = Reader::new(&[0xc1], 0).u64().unwrap_err();
        assert_eq!(error.to_string(), "byte 0: expected a value");
    }

    #[test]
    fn fields_that_are_missing_are_absent_and_new_ones_are_stepped_over() {
        let message = [0x94, 1, 0xc0, 0x91, 9, 7, 5];
        let mut reader = Reader::new(&message, 0);
        let mut fields = reader.fields().unwrap();
        assert_eq!(fields.optional(Reader::u64), Ok(Some(1)));
        assert_eq!(fields.optional(Reader::u64), Ok(None));
        fields.finish().unwrap();
        assert_eq!(reader.u64(), Ok(5));
        let mut reader = Reader::new(&[0x90], 0);
        let mut fields = reader.fields().unwrap();
        assert_eq!(fields.optional(Reader::u64), Ok(None));
        assert_eq!(fields.next().unwrap_err().expected, "more fields");
    }
}
