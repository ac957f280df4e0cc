package excerpt

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"", 3, ""},
		{"short", 5, "short"},
		{"longer", 5, "lo…"},
		{"four", 3, "…"},
		{"äöüß", 8, "äöüß"},
		{"äöüßx", 8, "äö…"},
		{"a\xffb", 8, "a?b"},
		{"\xff\xff\xff\xff", 8, "?"}, // one run of invalid bytes
	} {
		if have := Of(c.in, c.most); have != c.want {
			t.Errorf("Of(%q, %d) is %q, want %q", c.in, c.most, have, c.want)
		}
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"one\ntwo", 7, "one\ntwo"},
		{"one line\nof three\nlines", 22, "one line\nof three\n…"},
		{"a\nlong second line", 12, "a\nlong s\n…"},
		{"äg\xbc\xe5\xaaöü\nx", 11, "äg?öü\nx"}, // 12 bytes, of which three become one
	} {
		if have := Lines(c.in, c.most); have != c.want {
			t.Errorf("Lines(%q, %d) is %q, want %q", c.in, c.most, have, c.want)
		}
	}
}

func TestFew(t *testing.T) {
	for want, all := range map[string][]int{"": nil, "1; 2": {1, 2}, "1; 2; and 2 more": {1, 2, 3, 4}} {
		if have := Few(all, 2, strconv.Itoa); have != want {
			t.Errorf("%v is %q, want %q", all, have, want)
		}
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add("äöü\nx", uint8(7))
	f.Add("\xe2\x82", uint8(0))
	f.Fuzz(func(t *testing.T, s string, n uint8) {
		most := int(n) + 4
		for name, have := range map[string]string{"Of": Of(s, most), "Lines": Lines(s, most)} {
			if len(have) > most || !utf8.ValidString(have) {
				t.Errorf("%s(%q, %d) is %q", name, s, most, have)
			}
			if len(s) <= most && utf8.ValidString(s) && have != s {
				t.Errorf("%s(%q, %d) is %q although it fits", name, s, most, have)
			}
			if kept := strings.TrimRight(strings.TrimSuffix(have, "…"), "\n"); utf8.ValidString(s) && !strings.HasPrefix(s, kept) {
				t.Errorf("%s(%q, %d) is %q, which does not begin the text", name, s, most, have)
			}
		}
	})
}
