package addresses

import "testing"

// TestAmple holds that a lease ahead of need never makes a pool Low, which is when 90 % are
// leased: nodes would take and give up the same lease forever.
func TestAmple(t *testing.T) {
	for _, c := range []struct {
		size, leased int64
		want         bool
	}{
		{0, 0, false},
		{1, 0, false},
		{2, 0, true},
		{2, 1, false},
		{3, 1, true},
		{3, 2, false},
		{5, 3, true},
		{5, 4, false},
		{100, 79, true},
		{100, 80, false},
		{65024, 52019, true},
		{65024, 52020, false},
	} {
		if have := ample(c.size, c.leased); have != c.want {
			t.Errorf("%d of %d are leased: ample is %v", c.leased, c.size, have)
		}
	}
	for size := int64(1); size < 500; size++ {
		for leased := range size {
			if ample(size, leased) && leased+1 >= size-size/10 {
				t.Fatalf("%d of %d are leased, and one more makes the pool Low", leased, size)
			}
		}
	}
}
