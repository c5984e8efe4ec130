"The image signal processing of a camera"
import numpy as np

from reid_lab.world.places import ISP, develop


def test_neutral_sensor_changes_nothing():
    rgb = np.random.default_rng(0).random((16, 8, 3))
    assert np.abs(develop(rgb, ISP()).astype(int) - np.round(rgb*255)).max() <= 1
    assert develop(rgb, ISP(exposure=.4)).mean() > develop(rgb, ISP()).mean() > develop(rgb, ISP(exposure=-.4)).mean()
    assert develop(rgb, ISP(blur=3.)).std() < develop(rgb, ISP()).std()
    assert develop(rgb, ISP(jpeg=30)).shape == (16, 8, 3)
