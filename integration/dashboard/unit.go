package dashboard

import (
	"math"
	"strconv"
)

// units print values, by the names Grafana has for them.
var units = map[string]func(float64) string{
	"short":       func(v float64) string { return scaled(v, 1000, "", "k", "M", "G") },
	"ops":         func(v float64) string { return scaled(v, 1000, "/s", "k/s", "M/s", "G/s") },
	"bytes":       func(v float64) string { return scaled(v, 1024, " B", " KiB", " MiB", " GiB") },
	"Bps":         func(v float64) string { return scaled(v, 1000, " B/s", " kB/s", " MB/s", " GB/s") },
	"percentunit": func(v float64) string { return short(v*100) + "%" },
	"s": func(v float64) string {
		switch a := math.Abs(v); {
		case a == 0:
			return "0"
		case a < 1e-3:
			return short(v*1e6) + " µs"
		case a < 1:
			return short(v*1e3) + " ms"
		default:
			return short(v) + " s"
		}
	},
}

func scaled(v, by float64, names ...string) string {
	n := 0
	for ; math.Abs(v) >= by && n+1 < len(names); n++ {
		v /= by
	}
	if v == 0 {
		return "0"
	}
	return short(v) + names[n]
}

// short prints three digits of a number.
func short(v float64) string {
	digits := 2
	if a := math.Abs(v); a >= 100 {
		digits = 0
	} else if a >= 10 {
		digits = 1
	}
	by := math.Pow(10, float64(digits))
	return strconv.FormatFloat(math.Round(v*by)/by, 'f', -1, 64)
}

// ticks are some four numbers from 0 to most or a little more, which are round in
// the unit.
func ticks(most float64, unit string) []float64 {
	if most <= 0 || math.IsNaN(most) || math.IsInf(most, 0) {
		most = 1
	}
	if unit == "bytes" && most >= 1024 {
		out := ticks(most/1024, unit)
		for i := range out {
			out[i] *= 1024
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, by := range []float64{1, 2, 5, 10} {
		if most/(step*by) <= 4.5 {
			step *= by
			break
		}
	}
	var out []float64
	for n := 0; ; n++ {
		out = append(out, float64(n)*step)
		if float64(n)*step >= most*0.999 {
			return out
		}
	}
}
